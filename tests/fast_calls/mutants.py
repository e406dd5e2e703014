"""Mutants of the guards: each leaves one condition out, and the fuzzer has to notice it.

``python -m tests.fast_calls.mutants`` runs the fuzzer on each, and exits with 1 if one goes unnoticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import REPOSITORY

__all__ = ["MUTANTS", "Mutant", "is_noticed", "main", "mutated_source"]

_SOURCE = REPOSITORY / "src"


@dataclass(frozen=True)
class Mutant:
    """A change of one file of the package.

    Attributes:
        name: the condition that is left out, in words.
        file: below ``src/opwright``.
        old: the text, which is there exactly once.
        new: what replaces it.
    """

    name: str
    file: str
    old: str
    new: str


# Not among them are two conditions that change no result of a program: modes of the dispatcher are also among the
# thread's keys, and deterministic algorithms fill memory that a kernel leaves unwritten. test_intercepted_calls.py has
# both.
MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the types of constants are not compared",
        "fast_path/templates/guarded_call.h",
        "  if (!Py_IS_TYPE(argument, Py_TYPE(value))) return 0;\n",
        "  if (PyFloat_CheckExact(value) && !PyFloat_CheckExact(argument)) return 0;\n",
    ),
    Mutant(
        "dtypes are not compared",
        "fast_path/templates/guarded_call.h",
        "tensor.dtype() == expected.dtype &&",
        "true &&",
    ),
    Mutant(
        "requires_grad is not compared",
        "fast_path/templates/guarded_call.h",
        "tensor.requires_grad() == expected.requires_grad &&",
        "true &&",
    ),
    Mutant(
        "sizes of one name are not compared",
        "fast_path/templates/guarded_call.h",
        "      if (sizes[i] != expected) return false;\n",
        "",
    ),
    Mutant(
        "sizes and strides are not compared",
        "fast_path/templates/guarded_call.h",
        "tensor.sizes() == c10::IntArrayRef(expected.sizes) &&",
        "true ||",
    ),
    Mutant(
        "keys of the thread are not compared",
        "fast_path/templates/guarded_call.h",
        "    if (!(ThreadKeys::of_this_thread(guard_.tracking == 1) == guard_.thread_keys)) return 0;\n",
        "",
    ),
    Mutant(
        "grad mode is not compared",
        "fast_path/templates/guarded_call.h",
        "    if (guard_.tracking >= 0 && c10::GradMode::is_enabled() != (guard_.tracking == 1)) return 0;\n",
        "",
    ),
    Mutant(
        "the dispatcher's kernels are not compared",
        "fast_path/templates/guarded_call.h",
        "return !guard_.registered || guard_.registered->is_as_it_was();",
        "return 1;",
    ),
    Mutant(
        "a tensor that is passed twice is taken for two",
        "fast_path/templates/guarded_call.h",
        "is_tensor(argument, *expected.tensor) && is_first(i)",
        "is_tensor(argument, *expected.tensor)",
    ),
    Mutant("observers are not noticed", "fast_path/templates/guarded_call.h", "at::hasCallbacks() ||", ""),
    Mutant(
        "modes of functions are not noticed",
        "fast_path/templates/guarded_call.h",
        "at::impl::torch_function_mode_enabled() ||",
        "",
    ),
    Mutant(
        "autograd sees what a kernel does",
        "fast_path/templates/guarded_call.h",
        "  const at::AutoDispatchBelowAutograd below;\n",
        "",
    ),
    Mutant(
        "a kernel gets the caller's own list",
        "fast_path/templates/guarded_call.h",
        "guard->arguments[i].kind == Expected::list && !arguments.renew_list(i)",
        "false",
    ),
    Mutant(
        "what recorded code names is not compared",
        "fast_path/templates/unchanged.h",
        "if ((value == nullptr ? absent() : value) != PyTuple_GET_ITEM(each, 2)) return false;",
        "",
    ),
    Mutant(
        "fields of functions are not watched",
        "fast_path/known_code.py",
        "yield from ((function, field, getattr(function, field)) for field in _FIELDS)",
        "yield from ()",
    ),
    Mutant(
        "a builtin may be shadowed",
        "fast_path/known_code.py",
        "        yield names, name, ABSENT  # nothing shadows the builtin\n",
        "",
    ),
    Mutant(
        "other saved values of a recorded gradient are not compared",
        "fast_path/templates/tracked_call.h",
        "are_values(others, PyTuple_GET_ITEM(each.get(), 2)) &&",
        "",
    ),
    Mutant(
        "settings of a recorded gradient are not compared",
        "fast_path/templates/operations.h",
        "|| !(settings_ == Settings())",
        "",
    ),
    Mutant(
        "the place of a view is that of its tensor",
        "backends/gpu/recording.py",
        "place.offset + each.data_ptr() - base.data_ptr() if each.numel() else place.offset",
        "place.offset",
    ),
    Mutant(
        "guards are kept when kernels change",
        "fast_path/learning.py",
        "            self._learned = 0\n            self._guarded_calls = ()\n",
        "            self._learned = 0\n",
    ),
    Mutant("arguments are not converted", "contract/binding.py", "converted[i] = value = convert(value)", "pass"),
)


def mutated_source(mutant: Mutant, folder: Path) -> Path:
    """A copy of ``src`` with the mutant, for ``PYTHONPATH``.

    Raises:
        ValueError: the text is not there exactly once, so the mutant is out of date.
    """
    copy = folder / "src"
    shutil.copytree(_SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "opwright" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.file} must have the text once, got {text.count(mutant.old)} times")
    file.write_text(text.replace(mutant.old, mutant.new))
    return copy


def is_noticed(mutant: Mutant, programs: int, seed: int = 0) -> bool:
    """Whether one of the fuzzer's programs has a difference with a mutant."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join((str(mutated_source(mutant, Path(folder))), str(REPOSITORY)))
        command = ["-m", "tests.fast_calls.fuzz", "--programs", str(programs), "--seed", str(seed), "--stop", "1"]
        done = subprocess.run(
            [sys.executable, *command, "--shrink", "0"], env={**os.environ, "PYTHONPATH": path}, cwd=folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: the fuzzer exits with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.returncode == 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fast_calls.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=1000, help="for each mutant (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("names", nargs="*", help="of mutants, or parts of names (default: all)")
    given = parser.parse_args(arguments)
    chosen = [m for m in MUTANTS if not given.names or any(name in m.name for name in given.names)]
    unnoticed = 0
    for mutant in chosen:
        noticed = is_noticed(mutant, given.programs, given.seed)
        unnoticed += not noticed
        print(f"{'noticed  ' if noticed else 'UNNOTICED'} {mutant.name} ({mutant.file})", flush=True)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main())
