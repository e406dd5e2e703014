"""Inductor's code for a GPU that this machine does not have."""
