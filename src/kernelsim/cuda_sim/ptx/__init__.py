"""Inline PTX as C++."""
