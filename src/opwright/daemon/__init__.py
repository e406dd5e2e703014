"""The daemon: a process that has imported torch and run nothing, from which commands are forked. This is the side that
asks; ``cli/daemon_process.py`` is the process."""
