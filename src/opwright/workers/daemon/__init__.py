"""The daemon: a process that has imported torch and run nothing, from which commands are forked. ``client`` asks it,
``process`` is it, and ``address`` says where it listens."""
