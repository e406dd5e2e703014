"""How a kernel is called: often, in several threads and streams, with other settings, in each configuration."""
