"""Python processes for tests that need one of their own, forked from a process that has imported torch already.

A new Python takes two to four seconds to import torch and what torch.compile needs; a fork of a process that has done
so takes milliseconds, and is as fresh: it has imported nothing of opwright, run nothing and touched no device. What
chooses at import (``TRITON_INTERPRET``) or tests starting itself needs ``fresh=True``: a Python of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

__all__ = ["run_module", "run_script"]

_PRELOAD = ["torch", "torch._dynamo", "torch._functorch.aot_autograd", "jaxtyping", "numpy"]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_PRELOAD)


def run_script(
    file: Path, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 200,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a file as ``python FILE ARGS``; ``env`` is added to this process's environment."""
    return _run([str(file), *map(str, args)], env, cwd, timeout, fresh)


def run_module(
    module: str, *args: object, env: dict[str, str] | None = None, cwd: Path | None = None, timeout: float = 200,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a module as ``python -m MODULE ARGS``."""
    return _run(["-m", module, *map(str, args)], env, cwd, timeout, fresh)


def _run(
    command: list[str], env: dict[str, str] | None, cwd: Path | None, timeout: float, fresh: bool
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **(env or {})}
    if fresh:
        return subprocess.run(
            [sys.executable, *command], env=environment, cwd=cwd, capture_output=True, text=True, timeout=timeout,
            check=False,
        )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = _context.Process(target=_become, args=(command, environment, str(cwd or Path.cwd()), out, err))
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, _read(out), _read(err))
        code = process.exitcode
        assert code is not None  # it was joined
        return subprocess.CompletedProcess(command, code, _read(out), _read(err))


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def _become(command: Sequence[str], environment: dict[str, str], cwd: str, out: Path, err: Path) -> None:
    """Turn a forked process into what ``python COMMAND`` would be, and never come back."""
    code = 1
    try:
        for stream, file in ((1, out), (2, err)):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
            os.dup2(descriptor, stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        sys.path[:0] = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
        _execute(command)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _execute(command: Sequence[str]) -> None:
    if command[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = list(command[1:])
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")
