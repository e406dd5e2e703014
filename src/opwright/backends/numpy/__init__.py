"""NumPy functions compiled by torch.compile."""
