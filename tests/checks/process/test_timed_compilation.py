"""Compilations with a limit of their own, which do not count as a kernel's time."""

from __future__ import annotations

import faulthandler
import os
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import Float
from torch import Tensor

import opwright as ow
from opwright.checks.process import timed_compilation
from opwright.checks.process.messages import Compiled, Doing
from opwright.checks.process.run_job import _Checker
from opwright.checks.process.timed_compilation import Limit, limit_compilations, within
from opwright.errors import CompileTimeoutError
from opwright.workers.messages import write_message


def test_what_a_child_has_made_is_taken_from_its_cache(tmp_path: Path) -> None:
    def compile_(name: str, *, text: str) -> tuple[str, int]:
        made = tmp_path / name
        if not made.exists():
            made.write_text(f"{text} {os.getpid()}")
        return made.read_text(), os.getpid()

    made, by = within(60, compile_, "kernel", text="by")
    assert made.startswith("by ")
    assert made != f"by {by}"


@pytest.mark.slow
def test_a_compilation_that_takes_longer_is_stopped_with_its_own_children(tmp_path: Path) -> None:
    def compile_() -> None:
        program = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
        subprocess.run([sys.executable, "-c", program], check=True)

    with pytest.raises(CompileTimeoutError, match="compiling takes more than 3 s"):
        within(3, compile_)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_error_of_the_compiler_and_a_child_that_crashes_are_as_ever() -> None:
    here = os.getpid()

    def fails() -> None:
        raise ValueError("no such type")

    def crashes() -> str:
        if os.getpid() != here:
            faulthandler.disable()  # its traceback would stand among pytest's output
            os.abort()
        return "compiled here"

    with pytest.raises(ValueError, match="no such type"):
        within(60, fails)
    assert within(60, crashes) == "compiled here"


@pytest.mark.triton
def test_triton_compiles_in_the_child_for_a_gpu_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = pytest.importorskip("triton.compiler")
    from triton.backends.compiler import GPUTarget

    from tests.checks.process.triton_kernels import add_one

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "compile", compiler.compile)
    took: list[float] = []
    limit_compilations(compiler.compile, Limit(60, 60), took.append)
    source = compiler.ASTSource(add_one, {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {(2,): 128})
    made = compiler.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert "ld.global" in made.asm["ptx"]
    assert len(took) == 1


def test_a_compilation_may_take_some_times_as_long_as_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, limits = 0.0, []

    def compile_(seconds: float) -> None:
        nonlocal now
        now += seconds

    def within(limit: float, function: Callable[..., Any], *arguments: Any) -> Any:
        limits.append(limit)
        return function(*arguments)

    compiler = types.SimpleNamespace(compile=compile_)
    monkeypatch.setattr(timed_compilation, "within", within)
    monkeypatch.setattr(timed_compilation, "time", types.SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(timed_compilation, "importlib", types.SimpleNamespace(import_module=lambda name: compiler))
    limit_compilations(compile_, Limit(5.0, 60.0), lambda seconds: None)
    for seconds in (0.5, 3.0, 40.0, 1.0):
        compiler.compile(seconds)
    assert limits == [60.0, 5.0, 12.0, 60.0]


def test_where_no_process_can_be_made_it_compiles_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fails)
    assert within(60, os.getpid) == os.getpid()


def test_compilations_do_not_count_as_time_of_a_step() -> None:
    ours, theirs = socket.socketpair()
    read, write = os.pipe()
    with ours, theirs:
        checker = _Checker(ours, read, 10.0, lambda message: None, None)  # type: ignore[arg-type]
        checker.receive(write_message(Doing("values", "n=5")).strip())
        before = checker.deadline()
        checker.receive(write_message(Compiled(7.0)).strip())
        assert checker.deadline() == pytest.approx(before + 7)
        checker.receive(write_message(Compiled(-5.0)).strip())
        assert checker.deadline() == pytest.approx(before + 7)
        checker.receive(write_message(Compiled(1e9)).strip())  # as a kernel that never ends may report
        assert checker.deadline() <= before + 301
    os.close(read)
    os.close(write)


class OutOfResources(Exception):
    """As Triton's class is called."""


@pytest.fixture
def slow_to_compile(namespace: str):
    """An operator whose kernel "compiles" too long past a size, and is refused by the hardware past another one."""

    def made(*, compiles: int, fits: int, fault: int = 1 << 30, refusal: type[Exception] = OutOfResources) -> ow.Op:
        @ow.op(f"{namespace}::rows")
        def rows(x: Float[Tensor, "m n"]) -> Float[Tensor, "m n"]:
            return x * 2

        @rows.python(name="kernel")
        def kernel(x: Tensor) -> Tensor:
            if x.shape[1] > fits:
                raise refusal(f"out of resource: shared memory, Required: {4 * x.shape[1]}, Hardware limit: 232448")
            if x.shape[1] > compiles:
                raise CompileTimeoutError("compiling takes more than 10 s")
            out = (x * 2).contiguous()
            out[:, fault:] = 0
            return out

        return rows

    return made


def test_sizes_that_take_too_long_to_compile_are_left_out(slow_to_compile) -> None:
    verdict = ow.check(slow_to_compile(compiles=1025, fits=1 << 30), device="cpu").verdicts[0]
    assert verdict.status == "pass", verdict
    (said,) = [n.why for n in verdict.not_checked if n.check == "values" and "compiling takes more than 10 s" in n.why]
    assert "n=2049" in said
    assert "(n up to 1025 ran; state with when=" in said
    assert "n=300007" not in said.split(": compiling")[0]


@pytest.mark.slow
def test_sizes_that_the_hardware_refuses_are_left_out(slow_to_compile) -> None:
    verdict = ow.check(slow_to_compile(compiles=1 << 30, fits=4096), device="cpu").verdicts[0]
    assert verdict.status == "pass", verdict
    (said,) = [n.why for n in verdict.not_checked if n.check == "values" and "the hardware refuses it" in n.why]
    assert "(n up to 4096 ran; state with when=" in said


@pytest.mark.slow
def test_a_kernel_that_only_says_that_the_hardware_refuses_it_fails(slow_to_compile) -> None:
    operator = slow_to_compile(compiles=1 << 30, fits=4096, refusal=RuntimeError)
    assert ow.check(operator, checks=["values"], device="cpu").verdicts[0].status == "fail"


@pytest.mark.slow
def test_faults_below_such_sizes_are_found(slow_to_compile) -> None:
    operator = slow_to_compile(compiles=1025, fits=4096, fault=700)
    assert ow.check(operator, checks=["values"], device="cpu").verdicts[0].status == "fail"


@pytest.mark.slow
def test_a_kernel_that_is_refused_at_every_size_fails(slow_to_compile) -> None:
    for limits in ({"compiles": -1, "fits": 1 << 30}, {"compiles": 1 << 30, "fits": -1}):
        assert ow.check(slow_to_compile(**limits), device="cpu").verdicts[0].status in ("fail", "thin")
