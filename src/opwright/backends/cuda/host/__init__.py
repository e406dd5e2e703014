"""Host functions of ``.cu`` files in the simulator: each becomes a function in Python, or is refused."""
