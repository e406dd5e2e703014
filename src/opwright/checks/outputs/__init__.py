"""Checks of what a kernel returns and leaves behind: values, metadata, arguments, settings."""
