"""Fixtures for the gallery's tests: the two devices, layouts, and torch.compile with its generated code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

Compile = Callable[..., Any]


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    torch.compiler.reset()
    # Caches would hide the code that torch.compile generates for the kernel of a test.
    with torch.compiler.config.patch(force_disable_caches=True):
        yield


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.compiler), pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each test that uses this runs on the CPU (C++ kernels) and on a GPU (Triton kernels)."""
    return str(request.param)


@pytest.fixture
def compiled(device: str) -> Compile:
    """torch.compile without graph breaks. On a CPU nothing is generated, which takes Inductor many seconds."""

    def compile_whole(function: Callable[..., Any], **options: Any) -> Any:
        backend = "inductor" if device == "cuda" else "aot_eager"
        return torch.compile(function, fullgraph=True, backend=backend, **options)

    return compile_whole


@pytest.fixture
def run_and_get_code() -> Callable[..., tuple[Any, str]]:
    """Calls a compiled function: its result, and the text that Inductor generated for it."""
    from torch._inductor.utils import run_and_get_code

    def run(function: Callable[..., Any], *args: Any) -> tuple[Any, str]:
        result, texts = run_and_get_code(function, *args)
        return result, "\n".join(texts)

    return run


def _layouts(make: Callable[..., torch.Tensor]) -> Iterator[torch.Tensor]:
    yield from (make(shape) for shape in ((), (0,), (1,), (1025,), (3, 0), (4096,), (33, 70)))
    yield make((70, 33)).T
    yield make((2050,))[::2]
    yield make((5, 40))[:, 3:]
    yield make((1, 9)).expand(7, 9)
    yield make((2, 3, 4, 5)).permute(3, 1, 0, 2)


@pytest.fixture
def layouts() -> Callable[..., Iterator[torch.Tensor]]:
    """``layouts(dtype, device)``: random tensors, empty and odd ones and many that are not contiguous."""

    def of(dtype: torch.dtype, device: str = "cpu") -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        return _layouts(lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype))

    return of
