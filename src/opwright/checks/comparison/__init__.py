"""Comparing results: element by element within a tolerance, and by statistics."""
