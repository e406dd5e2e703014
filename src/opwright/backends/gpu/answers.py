"""What ``torch.cuda`` answers where no GPU can be asked: what it says of an H100."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

__all__ = ["answers_of_a_gpu"]

_PROPERTIES = types.SimpleNamespace(
    name="simulated GPU", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, warp_size=32,
    max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10, shared_memory_per_multiprocessor=228 << 10, L2_cache_size=50 << 20,
)  # fmt: skip


class _Stream:
    """The only stream."""

    cuda_stream, device = 0, torch.device("cuda", 0)

    def _nothing(self, *_: Any) -> None:
        """There is nothing to wait for."""

    synchronize = wait_stream = wait_event = record_event = _nothing


_STREAM = _Stream()
_ANSWERS: Mapping[str, Callable[..., Any]] = {
    "synchronize": lambda *_, **__: None,
    "current_stream": lambda *_, **__: _STREAM,
    "default_stream": lambda *_, **__: _STREAM,
    "current_device": lambda: 0,
    "device_count": lambda: 1,
    "is_current_stream_capturing": lambda: False,
    "get_device_properties": lambda *_, **__: _PROPERTIES,
    "get_device_capability": lambda *_, **__: (_PROPERTIES.major, _PROPERTIES.minor),
    "get_device_name": lambda *_, **__: _PROPERTIES.name,
    "device": lambda *_, **__: contextlib.nullcontext(),
    "device_of": lambda *_, **__: contextlib.nullcontext(),
}


@contextlib.contextmanager
def answers_of_a_gpu(**others: Callable[..., Any]) -> Iterator[None]:
    """A block in which functions of ``torch.cuda`` answer as on a GPU; ``others`` are further ones by name."""
    answers = {**_ANSWERS, **others}
    before = {name: getattr(torch.cuda, name) for name in answers}
    try:
        for name, answer in answers.items():
            setattr(torch.cuda, name, answer)
        yield
    finally:
        for name, function in before.items():
            setattr(torch.cuda, name, function)
