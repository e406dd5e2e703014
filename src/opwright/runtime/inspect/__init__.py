"""The code that a kernel is compiled to, for ``opwright show``."""
