"""Fast calls: calls like an earlier one, which skip torch's dispatcher. README.md says what they assume, where that is
verified, and what switches them off."""
