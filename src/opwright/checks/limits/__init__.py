"""What takes a check too long, or too much memory: found beforehand where that is possible."""
