"""NumPy in references: its dtype rules, and which of its functions torch lacks."""
