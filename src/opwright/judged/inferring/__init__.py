"""Contracts that are inferred: a reference runs with other sizes, and what it accepts is kept."""
