"""Operators as an ordinary Python package, which loads without opwright (docs/packaging.md)."""
