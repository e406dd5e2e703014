"""What torch is told of an operator: registration, autograd, autocast, vmap."""
