"""Operators that exist already, as they are: checked, explained and timed against a reference (``ow.adopt``)."""
