"""Checks of what torch does with the registered operator: opcheck, torch.compile, vmap, FLOPs."""
