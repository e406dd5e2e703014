"""Blocks in which calls are made: beside other work, and without deterministic algorithms.

Other work spreads the starts of a kernel's blocks. On an H200 they start up to 3.6 µs apart beside it, within 0.1 µs
without it (benchmarks/results/2026-11-26-h200-block-starts.txt).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch

__all__ = ["beside_other_work", "without_deterministic_algorithms"]

# The size of the matrices whose products keep a GPU busy, and how many are launched at a time.
_SIZE, _PRODUCTS = 2048, 40
# The elements of a CPU's work: few enough for one thread.
_ELEMENTS = 1 << 15


@contextlib.contextmanager
def beside_other_work(device: str) -> Iterator[None]:
    """Another thread keeps the device busy, on a GPU on a stream of its own."""
    work_once = _products_of_matrices() if device == "cuda" else _sines()
    work_once()
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            work_once()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _products_of_matrices() -> Callable[[], None]:
    stream = torch.cuda.Stream()
    a, b = (torch.ones(_SIZE, _SIZE, dtype=torch.float16, device="cuda") for _ in range(2))
    product = torch.empty_like(a)
    stream.wait_stream(torch.cuda.current_stream())

    def multiply() -> None:
        with torch.cuda.stream(stream):
            for _ in range(_PRODUCTS):
                torch.mm(a, b, out=product)
        stream.synchronize()

    return multiply


def _sines() -> Callable[[], None]:
    numbers = torch.ones(_ELEMENTS)

    def compute() -> None:
        torch.sin(numbers, out=numbers)

    return compute


@contextlib.contextmanager
def without_deterministic_algorithms() -> Iterator[None]:
    """As in a program that does not ask for them; checks do."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
