"""The tables of ow.tune: which kernel is the fastest for which sizes, where they are stored, and who uses them."""
