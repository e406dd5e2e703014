"""One call, from its arguments to a kernel."""
