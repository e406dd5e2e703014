"""``python -m opwright.gallery.conv1d``: the same data through NumPy, the PyTorch operator and MAX."""

from opwright.gallery.conv1d import demo

raise SystemExit(0 if demo() else 1)
