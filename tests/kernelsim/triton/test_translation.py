"""What a kernel was translated to is taken from the cache only if all that decides it is as it was."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import triton.language as tl

from kernelsim.own_host import OwnHost
from kernelsim.triton_sim import translation
from kernelsim.triton_sim.frontend import specialise
from kernelsim.triton_sim.translation import translate

HELPERS = """
import triton, triton.language as tl
@triton.jit
def scaled(x):
    return x * 3
"""
KERNEL = """
import triton, triton.language as tl
import translated_helpers as helpers
SHIFT = tl.constexpr(5)
scaled = helpers.scaled
@triton.jit
def kernel(x, n, B: tl.constexpr):
    i = tl.arange(0, 8)
    tl.store(x + i, scaled(tl.load(x + i, mask=i < n)) + B + SHIFT, mask=i < n)
"""


@pytest.fixture
def frontend(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of kernels that Triton's frontend has translated."""
    seen: list[str] = []
    ttir = translation.ttir

    def noted(function, specialised, host):
        seen.append(function.__name__)
        return ttir(function, specialised, host)

    monkeypatch.setattr(translation, "ttir", noted)
    return seen


@pytest.fixture
def host(tmp_path: Path) -> OwnHost:
    return OwnHost(tmp_path / "cache")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Load the kernel's module anew, as another process would, with some of its text replaced."""
    monkeypatch.syspath_prepend(tmp_path)

    def loaded(old: str = "", new: str = "", *, file: str = "kernel.py") -> ModuleType:
        for name, text in {"translated_helpers.py": HELPERS, "kernel.py": KERNEL}.items():
            changed = text.replace(old, new) if name == file and old else text
            assert changed != text or name != file or not old
            (tmp_path / name).write_text(changed)
        sys.modules.pop("translated_helpers", None)
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            spec = importlib.util.spec_from_file_location("translated_kernel", tmp_path / "kernel.py")
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        finally:
            sys.dont_write_bytecode = before
        return module

    yield loaded
    sys.modules.pop("translated_helpers", None)


def translated(module: ModuleType, host: OwnHost, *args: object, **options: object) -> translation.Translated:
    specialised = specialise(module.kernel, args or (torch.zeros(8), 7, 2), options)
    return translate(module.kernel, specialised, host)


def test_another_process_takes_it_from_the_cache(load, host, frontend) -> None:
    first, second = translated(load(), host), translated(load(), host)
    assert first == second
    assert len(frontend) == 1
    assert first.generated.sites


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("kernel.py", "+ B", "- B"),
        ("kernel.py", "constexpr(5)", "constexpr(6)"),
        ("kernel.py", "@triton.jit", "@triton.jit(do_not_specialize=['n'])"),
        ("translated_helpers.py", "* 3", "* 4"),
        ("translated_helpers.py", "@triton.jit", "@triton.jit(debug=True)"),
        ("translated_helpers.py", "@triton.jit", "# A line more, so that findings are elsewhere.\n@triton.jit"),
    ],
)
def test_an_edit_of_the_kernel_or_of_what_it_calls_is_seen(
    load, host, frontend, tmp_path: Path, file: str, old: str, new: str
) -> None:
    translated(load(), host)
    again = translated(load(old, new, file=file), host)
    assert len(frontend) == 2
    assert again == translated(load(old, new, file=file), OwnHost(tmp_path / "another cache"))


READ = """
import triton, triton.language as tl
import translated_helpers as helpers
from translated_helpers import DTYPE, TEXT
@triton.constexpr_function
def constant():
    return helpers.SHIFT
@triton.jit
def shifted(x, by: tl.constexpr = helpers.SHIFT):
    return x + by
def closed(dtype):
    @triton.jit
    def kernel(x, n, B: tl.constexpr):
        i = tl.arange(0, 8)
        read = tl.load(x + i, mask=i < n)
        tl.store(x + i, VALUE, mask=i < n)
    return kernel
kernel = closed(helpers.DTYPE)
"""
VALUES = """
import triton.language as tl
SHIFT, WRAPPED, DTYPE, TEXT = 5, tl.constexpr(5), tl.float16, tl.constexpr("1")
"""


@pytest.mark.parametrize(
    ("value", "old", "new"),
    [
        ("read.to(DTYPE)", "float16", "float32"),
        ("read.to(dtype)", "float16", "float32"),  # which a closure holds
        ("read + helpers.SHIFT", "5, tl", "6, tl"),
        ("read + helpers.WRAPPED", "(5)", "(6)"),
        ("read + getattr(helpers, 'SHIFT')", "5, tl", "6, tl"),
        ("read + (4 if TEXT == 1 else 7)", '"1"', "1"),
        ("shifted(read)", "5, tl", "6, tl"),  # a default
        ("read + constant()", "5, tl", "6, tl"),  # of a function of Python
    ],
)
def test_an_edit_of_what_another_module_says_is_seen(
    load, host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, old: str, new: str
) -> None:
    def with_values(text: str) -> ModuleType:
        monkeypatch.setitem(globals(), "HELPERS", text)
        monkeypatch.setitem(globals(), "KERNEL", READ.replace("VALUE", value))
        return load()

    first = translated(with_values(VALUES), host)
    again = translated(with_values(VALUES.replace(old, new)), host)
    fresh = translated(with_values(VALUES.replace(old, new)), OwnHost(tmp_path / "another cache"))
    assert again == fresh
    assert again.generated.text != first.generated.text


@pytest.mark.parametrize(
    ("dtype", "n", "constant"),
    [(torch.float16, 7, 2), (torch.float32, 1, 2), (torch.float32, 7, 2.0), (torch.float32, 7, True)],
)
def test_other_types_and_constants_are_others(
    load, host, frontend, dtype: torch.dtype, n: int, constant: object
) -> None:
    translated(load(), host, torch.zeros(8), 7, 1 if constant is True else 2)
    translated(load(), host, torch.zeros(8, dtype=dtype), n, constant)
    assert len(frontend) == 2


def test_other_options_and_settings_are_others(load, host, frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    translated(load(), host)
    translated(load(), host, torch.zeros(8), 7, 2, num_warps=8)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    translated(load(), host)
    assert len(frontend) == 3


def test_a_setting_of_a_program_is_seen(load, host, frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    translated(load(), host)
    monkeypatch.setattr(sys.modules["triton"].knobs.language, "fp32_default", "ieee")
    translated(load(), host)
    assert len(frontend) == 2


def test_a_constant_of_which_the_text_does_not_say_all_is_translated_each_time(load, host, frontend) -> None:
    for _ in range(2):
        translated(load("+ B + SHIFT", ".to(B)"), host, torch.zeros(8), 7, tl.float32)
    assert len(frontend) == 2


def test_a_simulator_that_has_changed_translates_anew(load, host, frontend, monkeypatch: pytest.MonkeyPatch) -> None:
    translated(load(), host)
    monkeypatch.setattr(translation, "_digest_of_ours", lambda: "another version")
    translated(load(), host)
    monkeypatch.setattr(translation, "_digest_of_triton", lambda: "another version")
    translated(load(), host)
    monkeypatch.setattr(translation, "_digest_of_triton", lambda: "")  # it is not where it should be
    translated(load(), host)
    assert len(frontend) == 4
