"""An operator's contract: signature, shapes, reference, and what is derived from them. Independent of kernels."""
