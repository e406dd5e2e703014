"""Checks of what a kernel returns and writes: values, metadata, memory, streams."""
