"""Lets launches of CUDA kernels go elsewhere, in place of a GPU or a simulator."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

__all__ = ["TakesLaunch", "cuda_launches_go_to", "who_takes_cuda_launches"]

# Gets the kernel, what stands in ``kernel[...]``, and the arguments.
TakesLaunch = Callable[..., None]

# By thread. Nearly always empty, so that a launch of a user hardly pays for the question.
_taken_over: dict[int, TakesLaunch] = {}


def who_takes_cuda_launches() -> TakesLaunch | None:
    """What gets the launches of this thread; None if they are made."""
    return _taken_over.get(threading.get_ident()) if _taken_over else None


@contextlib.contextmanager
def cuda_launches_go_to(take: TakesLaunch) -> Iterator[None]:
    """A block in which ``take(kernel, launch, *arguments)`` gets what ``kernel[launch](*arguments)`` would launch in
    this thread."""
    thread = threading.get_ident()
    before = _taken_over.get(thread)
    _taken_over[thread] = take
    try:
        yield
    finally:
        if before is None:
            del _taken_over[thread]
        else:
            _taken_over[thread] = before
