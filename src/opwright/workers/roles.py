"""What a worker may be, and the limits of the messages between a fork server and its parent."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["MESSAGE_BYTES", "MOST_FILES", "QUESTION", "Role"]

MESSAGE_BYTES = 4096
# A worker's sockets and its output; a checker process has a connection to each rank of two groups.
MOST_FILES = 200
# Begins a request that forks nothing: a number follows, which comes back after all that the server had to say.
QUESTION = b"?"


class Role(StrEnum):
    """The module whose ``main`` a worker runs with its connections. This package names it, and imports no check."""

    CHECKER = "opwright.checks.process.checker"
    KERNEL = "opwright.checks.process.kernel_process"
    RANK = "opwright.checks.process.rank_process"
    INFERENCE = "opwright.judged.infer_process"
    WARM = "opwright.workers.warm"
