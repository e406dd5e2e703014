"""From a typed function to its contract: what annotations and the reference say."""
