"""``python -m opwright.checks.process FD`` is the process that workers are forked from."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # imports leave no garbage; the server collects once, and enables it
    from opwright.checks.process import forkserver

    forkserver.main(*sys.argv[1:])
