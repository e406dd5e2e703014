"""Operators of models that run, each with a right kernel and with wrong ones."""
