"""The operator object: calls, registration with torch, attaching kernels, inspection."""
