"""The way of one call, from its arguments to a kernel."""
