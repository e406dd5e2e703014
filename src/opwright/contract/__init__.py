"""The operator as a statement: signature, shapes, reference, and what follows from them. Knows no kernels."""
