"""The common parts of languages for GPUs: device binaries, kernel arguments, the launcher."""
