"""``python -m opwright.workers FD`` is the process that workers are forked from."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage; the server collects once, and enables it
    from opwright.workers import fork_server_process

    fork_server_process.main(*sys.argv[1:])
