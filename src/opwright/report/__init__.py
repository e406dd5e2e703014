"""Showing records: terminal, JSON. Nothing here imports torch."""
