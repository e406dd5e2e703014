"""The check "global state": what a kernel leaves changed is a warning that names it; what it sets back is none."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import io
import os
import platform
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import opwright as ow
from opwright.backends.cuda.nvrtc_process import run_nvrtc
from opwright.checks.settings import state
from opwright.workers.relatives import children
from tests.sampled import quick

ON_X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the masks are those of x86")


def c():
    """The C library; each kernel's process opens it itself."""
    library = ctypes.CDLL(None)
    library.setlocale.restype, library.signal.restype = ctypes.c_char_p, ctypes.c_void_p
    return library


def verdict_of(namespace, kernel, *, draws=False, checks=("values", "global state")):
    if draws:

        @ow.op(f"{namespace}::noise", random=True)
        def operator(x: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
            return x + torch.rand_like(x)
    else:
        # A dozen cases, but for kernels that do it at some sizes only.
        vector = Float32[Tensor, "n" if kernel in AT_SOME_SIZES else "5"]

        @ow.op(f"{namespace}::twice")
        def operator(x: vector) -> vector:
            return 2 * x

    operator.python(kernel, name="kernel")
    return ow.check(operator, checks=checks, device="cpu").verdicts[0]


def sets_the_default_dtype(x):
    torch.set_default_dtype(torch.float64)
    return 2 * x


def turns_gradients_off(x):
    torch.set_grad_enabled(False)
    return 2 * x


def takes_one_thread(x):
    torch.set_num_threads(1)
    return 2 * x


def seeds(x):
    torch.manual_seed(0)
    return 2 * x


def draws(x):
    torch.rand(1)
    return 2 * x


def draws_in_python(x):
    random.random()
    return 2 * x


def lowers_products(x):
    torch.set_float32_matmul_precision("medium")
    return 2 * x


def turns_benchmarks_on(x):
    torch.backends.cudnn.benchmark = True
    return 2 * x


def goes_elsewhere(x):
    os.chdir(tempfile.gettempdir())
    return 2 * x


def sets_a_variable(x):
    c().setenv(b"MY_VARIABLE", b"secret", 1)
    return 2 * x


def removes_a_variable(x):
    os.environ.pop("HOME", None)
    return 2 * x


def sets_the_locale(x):
    assert c().setlocale(6, b"C")
    return 2 * x


def rounds_up(x):
    ctypes.CDLL("libm.so.6").fesetround(0x800)
    return 2 * x


def traps_divisions(x):
    ctypes.CDLL("libm.so.6").feenableexcept(4)
    return 2 * x


def ignores_a_signal(x):
    c().signal(signal.SIGUSR1, 1)
    return 2 * x


def lowers_a_limit(x):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
    return 2 * x


def hides_new_files(x):
    os.umask(0o777)
    return 2 * x


def closes_its_input(x):
    with contextlib.suppress(OSError):
        os.close(0)
    return 2 * x


def changes_it_only_for_long_vectors(x):
    if x.numel() > 1000:
        torch.set_default_dtype(torch.float64)
    return 2 * x


def leaves_a_thread(x):
    threading.Thread(target=time.sleep, args=(5,), name="left", daemon=True).start()
    return 2 * x


def leaves_folders(x):
    tempfile.mkdtemp()
    return 2 * x


def leaves_files_of_c(x):
    with open(os.path.join(os.environ["TMPDIR"], str(time.monotonic_ns())), "w"):  # as a library in C would
        return 2 * x


def leaves_a_daemon(x):
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "30"])
        os._exit(0)
    os.waitpid(pid, 0)
    return 2 * x


def leaves_a_process(x):
    subprocess.Popen(["sleep", "5"])
    return 2 * x


def seeds_numpy(x):
    np.random.seed(0)
    return 2 * x


def looks_for_anomalies(x):
    torch.autograd.set_detect_anomaly(True)
    return 2 * x


def leaves_hooks(x):
    torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()
    return 2 * x


def turns_mkldnn_off(x):
    torch.backends.mkldnn.enabled = False
    return 2 * x


def turns_collection_off(x):
    gc.disable()
    return 2 * x


def ignores_errors_of_numpy(x):
    np.seterr(all="ignore")
    return 2 * x


def ignores_warnings(x):
    warnings.filterwarnings("ignore")
    return 2 * x


def replaces_stderr(x):
    sys.stderr = io.StringIO()
    return 2 * x


def adds_a_folder(x):
    sys.path.insert(0, "/nowhere")
    return 2 * x


def recurses_deeper(x):
    sys.setrecursionlimit(5000)
    return 2 * x


def is_nicer(x):
    os.nice(1)
    return 2 * x


@pytest.mark.parametrize(
    ("kernel", "message"),
    quick(
        [
            (seeds_numpy, "the state of NumPy's random, though the contract"),
            (looks_for_anomalies, "whether autograd looks for anomalies: False before, True after"),
            (leaves_hooks, "hooks of saved tensors"),
            (turns_mkldnn_off, "torch.backends.mkldnn.enabled: True before"),
            (turns_collection_off, "garbage collection"),
            (ignores_errors_of_numpy, "how NumPy treats errors: "),
            (ignores_warnings, "the filters of warnings"),
            (replaces_stderr, "sys.stdin, stdout, stderr"),
            (adds_a_folder, "sys.path"),
            (recurses_deeper, "recursion"),
            (is_nicer, "processors or priority"),
            (leaves_a_thread, "the threads of Python: left left"),
            (leaves_a_process, "the child processes"),
            (leaves_a_daemon, "the child processes"),
            (leaves_folders, "the temporary files: tmp"),
            (leaves_files_of_c, "the temporary files: "),
            (sets_the_default_dtype, "the default dtype: torch.float32 before, torch.float64 after"),
            (turns_gradients_off, "whether gradients are recorded"),
            (takes_one_thread, "the number of torch's threads"),
            (seeds, "the state of torch's generator"),
            (draws, "the state of torch's generator"),
            (draws_in_python, "the state of Python's random"),
            (lowers_products, "torch.backends.cuda.matmul.fp32_precision: none before, tf32 after"),
            (turns_benchmarks_on, "torch.backends.cudnn.benchmark: False before, True after"),
            (goes_elsewhere, "the working directory"),
            (changes_it_only_for_long_vectors, "the default dtype"),
            (sets_a_variable, "the environment variables: MY_VARIABLE"),
            (removes_a_variable, "the environment variables: HOME"),
            (sets_the_locale, "the locale: "),
            pytest.param(rounds_up, "the rounding of floating-point numbers: to the nearest before", marks=ON_X86),
            pytest.param(traps_divisions, "the traps of floating-point numbers: 0 before, 4 after", marks=ON_X86),
            (ignores_a_signal, "the handlers of signals: SIGUSR1"),
            (lowers_a_limit, "the limits of resources: "),
            (hides_new_files, "umask"),
            (closes_its_input, "the standard streams"),
        ],
        every=4,
    ),
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize(
    "checks",
    [
        ("values", "global state"),
        pytest.param(("memory", "values", "global state"), marks=pytest.mark.slow),  # as many whole checks again
    ],
    ids=len,
)
def test_what_a_kernel_leaves_changed_is_named(namespace, kernel, message, checks):
    verdict = verdict_of(namespace, kernel, checks=checks)
    assert verdict.status == "warning", verdict.findings
    found = verdict.warnings[0]
    # What stays as the first call left it, and cannot be set back, is found where the kernel runs first.
    stays = kernel is closes_its_input and "memory" in checks
    assert found.check == ("memory" if stays else "global state")
    assert message in found.message
    assert "set it back" in found.remedy


_calls = [0]


def sets_the_default_dtype_once(x):
    _calls[0] += 1
    if _calls[0] == 1:
        torch.set_default_dtype(torch.float64)
    return 2 * x


def leaves_a_process_once(x):
    _calls[0] += 1
    return leaves_a_process(x) if _calls[0] == 1 else 2 * x


@pytest.mark.parametrize("kernel", [sets_the_default_dtype_once, leaves_a_process_once])
def test_what_only_the_first_call_changes_is_named_too(namespace, kernel):
    verdict = verdict_of(namespace, kernel, checks=("memory", "values", "global state"))
    (found,) = verdict.warnings
    assert found.check == "memory"
    assert re.search(r"the first calls change the (default dtype|child processes)", found.message)


def sets_up_a_library(x):
    _calls[0] += 1
    if _calls[0] == 1:
        os.environ["MY_LIBRARY"] = "1"
        c().signal(signal.SIGUSR1, 1)
        leaves_a_thread(x)
    return 2 * x


def test_what_a_library_sets_up_in_the_first_call_is_no_warning(namespace):
    verdict = verdict_of(namespace, sets_up_a_library, checks=("memory", "values", "global state"))
    assert verdict.status == "pass", verdict.findings


def sets_up_a_library_in_a_later_call(x):
    if len(x) > 100:
        _calls[0] += 1
        if _calls[0] == 1:
            c().signal(signal.SIGUSR1, 1)
    return 2 * x


def ignores_a_signal_in_some_calls(x):
    if len(x) > 100:
        c().signal(signal.SIGUSR1, 1)
    return 2 * x


@pytest.mark.parametrize(
    ("kernel", "is_found"), [(sets_up_a_library_in_a_later_call, False), (ignores_a_signal_in_some_calls, True)]
)
def test_what_a_library_sets_up_in_a_later_call_is_no_warning(namespace, kernel, is_found):
    verdict = verdict_of(namespace, kernel, checks=("memory", "values", "global state"))
    assert verdict.status == ("warning" if is_found else "pass"), verdict.findings


AT_SOME_SIZES = (changes_it_only_for_long_vectors, sets_up_a_library_in_a_later_call, ignores_a_signal_in_some_calls)


def draws_with_its_own_generator(x):
    torch.rand(3, generator=torch.Generator().manual_seed(0))
    return 2 * x


def draws_in_a_fork(x):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        torch.rand(3)
    return 2 * x


def sets_it_back(x):
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return 2 * x
    finally:
        torch.set_default_dtype(before)


def records_no_gradients_inside(x):
    with torch.no_grad():
        return 2 * x


def asks_for_products_in_float32(x):
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "ieee"
    try:
        return 2 * x
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def waits_for_its_thread(x):
    results = []
    thread = threading.Thread(target=lambda: results.append(2 * x))
    thread.start()
    thread.join()
    return results[0]


class _Monitor(threading.Thread):
    """As a progress bar of tqdm starts one, which stays."""

    __module__ = "tqdm._monitor"

    def run(self):
        time.sleep(60)


def shows_progress(x):
    _Monitor(daemon=True).start()
    return 2 * x


def sets_native_settings_back(x):
    c().setenv(b"MY_VARIABLE", b"1", 1)
    c().unsetenv(b"MY_VARIABLE")
    os.umask(os.umask(0o777))
    before = c().signal(signal.SIGUSR1, 1)
    c().signal(signal.SIGUSR1, ctypes.c_void_p(before))
    locale = ctypes.create_string_buffer(c().setlocale(6, None))
    c().setlocale(6, b"C")
    c().setlocale(6, locale)
    return 2 * x


def waits_for_its_process(x):
    subprocess.run(["true"], check=True)
    return 2 * x


def removes_its_files(x):
    with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "a"), "w") as file:
        file.write("a")
    return 2 * x


@functools.cache
def _folder():
    return tempfile.mkdtemp()


def keeps_one_folder_for_later_calls(x):
    with open(os.path.join(_folder(), "a"), "a") as file:
        file.write("a")
    return 2 * x


def has_a_daemon_that_has_ended(x):
    subprocess.run(["sh", "-c", "setsid true &"], check=True)
    while any(children()):
        time.sleep(0.01)
    return 2 * x


def computes_on_a_default_device(x):
    with torch.device("cpu"):
        return x * torch.full((), 2.0, dtype=x.dtype)


def sets_settings_of_python_back(x):
    with np.errstate(all="ignore"), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        np.random.default_rng(0).random()
        gc.disable()
        gc.collect()
        gc.enable()
    with torch.autocast("cpu"), torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return 2 * x


def sets_the_limit_of_recursion_as_inductor_does(x):
    sys.setrecursionlimit(max(2000, sys.getrecursionlimit()))
    return 2 * x


@pytest.mark.parametrize(
    "kernel",
    quick([
        sets_settings_of_python_back, sets_the_limit_of_recursion_as_inductor_does,
        draws_with_its_own_generator, draws_in_a_fork, sets_it_back, records_no_gradients_inside,
        computes_on_a_default_device, asks_for_products_in_float32, waits_for_its_thread, waits_for_its_process,
        removes_its_files, keeps_one_folder_for_later_calls, has_a_daemon_that_has_ended,
        shows_progress,
        sets_native_settings_back,
    ], 0, 3, 7, 11),
)  # fmt: skip
def test_what_is_as_before_is_no_warning(namespace, kernel):
    verdict = verdict_of(namespace, kernel)
    assert verdict.status == "pass", verdict.findings


@pytest.mark.slow  # a whole check
def test_an_operator_that_draws_random_numbers_may_advance_the_generator(namespace):
    verdict = verdict_of(namespace, lambda x: x + torch.rand_like(x), draws=True)
    assert verdict.status == "pass", verdict.findings


@pytest.mark.nvrtc
def test_the_process_in_which_nvrtc_compiles_is_none_of_the_kernels():
    before = state.settings("cpu")
    assert run_nvrtc("", "empty.cu", {}, [], []).succeeded
    assert "the child processes" not in state.changes(before, "cpu")
    child = subprocess.Popen(["sleep", "60"])
    try:
        assert "the child processes" in state.changes(before, "cpu")
    finally:
        child.kill()
        child.wait()
