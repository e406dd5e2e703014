"""What every language for GPUs shares: device binaries, kernel arguments, the launcher."""
