"""The registration of an operator with torch: autograd, autocast, vmap."""
