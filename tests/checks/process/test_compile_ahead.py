"""Triton's compilations ahead of the cases that need them, several at a time."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.checks.process.compile_ahead import CompileOnce, compile_ahead
from opwright.checks.process.timed_compilation import Limit, within
from opwright.internals.triton import launches_made_by
from opwright.runtime.kernel import hooks_of
from opwright.target import Target

pytestmark = pytest.mark.triton


class Source:
    def __init__(self, name: str) -> None:
        self.name = name

    def hash(self) -> str:
        return self.name


def ends(pid: int | None) -> None:
    assert pid is not None
    assert os.waitpid(pid, 0)[0] == pid


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Triton compiles for a GPU that is not there; the folder of its cache."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    class Driver:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device: 0)

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(driver, "_active", Driver())
    return tmp_path


def kernels_in(cache: Path) -> list[str]:
    return sorted(file.name for file in cache.rglob("*.cubin"))


def launcher(x: torch.Tensor, block: int) -> torch.Tensor:
    from tests.checks.process.triton_kernels import add_one

    if block == 64:
        raise ValueError("no such block")
    out = torch.empty_like(x)
    add_one[(1, block)](x, x.numel(), BLOCK=block)
    return out


def test_what_the_cases_launch_is_compiled_before_they_run(h200: Path) -> None:
    from triton import compiler

    def cases() -> Iterator[tuple[torch.Tensor, int]]:
        for block in (128, 256, 64, 128, 512):  # one fails, one is there twice
            yield torch.empty(1024, device="meta"), block
        yield torch.empty(1001, device="meta"), 128  # no multiple of 16: another kernel
        yield torch.empty(1025, device="meta")[1:], 128  # no aligned address: another one

    compile_ = CompileOnce(compiler.compile)
    ends(compile_ahead(lambda: launcher, cases, compile_, at_once=3, limit=Limit(60, 60)))
    assert kernels_in(h200) == ["add_one.cubin"] * 5
    with launches_made_by(lambda one: one.function.run(*one.arguments, **one.keywords, grid=one.grid, warmup=True)):
        launcher(torch.empty(1024, device="meta"), 256)
    assert kernels_in(h200) == ["add_one.cubin"] * 5  # it was there


def test_all_configurations_of_a_kernel_that_tunes_itself_are_compiled(h200: Path, namespace: str) -> None:
    from triton import compiler

    from tests.checks.process.triton_kernels import tuned

    @ow.op(f"{namespace}::add_one")
    def add_one(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x + 1

    @add_one.triton(name="tuned")
    def launch(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        tuned[lambda config: (-(-x.numel() // config["BLOCK"]),)](x, out, x.numel())
        return out

    make = hooks_of(add_one.kernels["tuned"], Target("cuda")).makes_launcher()
    assert make is not None
    calls = [(torch.empty(1000, device="meta"),)]
    ends(compile_ahead(make, lambda: calls, CompileOnce(compiler.compile), at_once=2, limit=Limit(60, 60)))
    assert kernels_in(h200) == ["tuned.cubin"] * 3


def test_a_kernel_that_is_being_compiled_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def compile_(source: Source, options: dict[str, int] | None = None) -> int:
        made = tmp_path / f"{source.name} {options}"
        if not made.exists():
            time.sleep(0.5)
            made.touch()
            with log.open("a") as file:
                file.write(f"{made.name}\n")
        return os.getpid()

    once = CompileOnce(compile_)
    for name, options in (("a", {"num_warps": 4}), ("a", {"num_warps": 4}), ("b", {"num_warps": 4})):
        assert within(60, once, Source(name), options=options) == os.getpid()
    children = []
    for options in ({"num_warps": 8}, {"num_warps": 8}, {"num_warps": 2}):
        child = os.fork()
        if child == 0:
            once(Source("a"), options=options)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert sorted(log.read_text().splitlines()) == sorted(
        [f"{name} {{'num_warps': {n}}}" for name, n in (("a", 4), ("b", 4), ("a", 8), ("a", 2))]
    )


def test_waiting_ends_when_nobody_compiles_it_and_after_its_seconds() -> None:
    once = CompileOnce(lambda source, options=None: time.sleep(600))
    once.wait(0.0, Source("a"))
    child = os.fork()
    if child == 0:
        once(Source("a"))
    while True:  # until the child has the lock
        start = time.monotonic()
        once.wait(0.3, Source("a"))
        if time.monotonic() - start >= 0.3:
            break
    start = time.monotonic()
    once.wait(300, Source("b"))
    once.wait(300, Source("a"), options={"num_warps": 1})
    os.kill(child, 9)
    once.wait(300, Source("a"))
    os.waitpid(child, 0)
    assert time.monotonic() - start < 200


def test_its_children_end_with_the_process_that_began_them(tmp_path: Path) -> None:
    def compile_(source: Source, options: Any = None) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)

    def launches(once: CompileOnce) -> None:
        sys.modules["triton.compiler"].compile(Source("slow"))  # type: ignore[attr-defined]

    import triton.compiler  # noqa: F401

    once = CompileOnce(compile_)
    beginner = os.fork()
    if beginner == 0:
        compile_ahead(lambda: functools.partial(launches, once), lambda: [()], once, at_once=2, limit=Limit(600, 600))
        time.sleep(600)
    while not (tmp_path / "pid").exists() or not (pid := (tmp_path / "pid").read_text()):
        time.sleep(0.02)
    os.kill(beginner, 9)
    os.waitpid(beginner, 0)
    deadline = time.monotonic() + 200
    while runs(Path(f"/proc/{pid}/status")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not runs(Path(f"/proc/{pid}/status"))


def runs(status: Path) -> bool:
    return status.exists() and "zombie" not in status.read_text()


def test_a_compilation_without_an_end_is_given_up(tmp_path: Path) -> None:
    import triton.compiler

    def compile_(source: Source, options: Any = None) -> None:
        time.sleep(600 if source.name == "slow" else 0)
        (tmp_path / source.name).touch()

    def launches(name: str) -> None:
        triton.compiler.compile(Source(name))

    once = CompileOnce(compile_)
    calls = [("fast",), ("slow",), ("last",)]  # the first one shows how long compilations take
    ends(compile_ahead(lambda: launches, lambda: calls, once, at_once=1, limit=Limit(0.5, 600)))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fast", "last"]
