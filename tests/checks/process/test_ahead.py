"""The process that compiles ahead: it fills the cache, runs nothing, and ends with the check."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow
from opwright.backends.triton.simulator import simulate as simulation
from opwright.backends.triton.simulator.simulate import compiling_only
from opwright.checks.process.fork_servers import beside_others
from opwright.checks.process.isolation import compiling_ahead
from opwright.checks.process.messages import Job
from opwright.runtime.targets import find_import_path

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit
def _double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n, other=0.0), mask=at < n)


@ow.op("ahead::double")
def double(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
    return 2 * x


def launch(x, out):
    if len(x):
        _double[(ow.cdiv(len(x), 64),)](x, out, len(x), BLOCK=64)
    return out


@double.triton(name="plain")
def _(x):
    x = x.contiguous()
    return launch(x, torch.empty_like(x))


@double.triton(name="waits for a result")
def _(x):
    x = x.contiguous()
    out = torch.zeros_like(x)
    launch(x, out)
    while x.isfinite().all() and not torch.equal(out, 2 * x):
        pass
    return out


@double.triton(name="ends a process that computes nothing")
def _(x):
    x = x.contiguous()
    out = torch.zeros_like(x)
    launch(x, out)
    if x.isfinite().all() and not torch.equal(out, 2 * x):
        os.kill(os.getpid(), signal.SIGKILL)
    return out


def test_launches_compile_and_do_not_run(monkeypatch):
    compiled = []
    compile_kernel = simulation.compile_kernel
    monkeypatch.setattr(
        simulation, "compile_kernel", lambda *args, **how: compiled.append(args) or compile_kernel(*args, **how)
    )
    x, out = torch.ones(100), torch.zeros(100)
    with ow.simulate():
        with compiling_only():
            launch(x, out)
        assert len(compiled) == 1
        assert not out.any()
        launch(x, out)
    assert torch.equal(out, 2 * x)


@pytest.mark.parametrize("kernel", list(double.kernels))
def test_it_fills_the_cache_and_ends_with_its_block(kernel, tmp_path):
    environment = {"OPWRIGHT_CACHE_DIR": str(tmp_path), "OPWRIGHT_CUDA_SIMULATOR": "1"}
    job = Job(kernel, "cpu", "quick", double.fingerprint, find_import_path(double), environment=environment)
    with beside_others(interpret=False) as server:
        with compiling_ahead(server, job) as pid:
            assert_soon(lambda: any("_double" in folder.name for folder in tmp_path.glob("artifacts/*")))
        assert_soon(lambda: not Path(f"/proc/{pid}").exists())


def assert_soon(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow  # each is a whole check
@pytest.mark.parametrize("kernel", list(double.kernels))
def test_a_check_is_the_same_whatever_happens_to_the_process(kernel):
    (verdict,) = ow.check(double, kernels=[kernel], checks=["values", "metadata"], device="cpu").verdicts
    assert verdict.status is ow.Status.PASS, verdict.findings
