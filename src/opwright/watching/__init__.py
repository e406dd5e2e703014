"""``opwright watch``: after each save, what changed is checked and timed."""
