"""Settings of a process, of C libraries and of Python, which a kernel may change."""
