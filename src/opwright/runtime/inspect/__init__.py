"""What a kernel is compiled to, for ``opwright show``."""
