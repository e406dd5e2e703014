"""The operator as a thing: called, registered with torch, given kernels, looked into."""
