"""``opwright new``: a package with one operator, its kernels, tests and workflow."""
