"""What to state in a contract, where a kernel fails for inputs that it may not be meant for."""
