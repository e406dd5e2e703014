"""The exceptions: their messages, and that they can be passed between processes."""

from __future__ import annotations

import inspect
import pickle

import pytest

from opwright import errors
from opwright.errors import CompileError, OpwrightError

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_all_lists_every_exception() -> None:
    defined = {n for n, v in vars(errors).items() if inspect.isclass(v) and issubclass(v, OpwrightError)}
    assert set(errors.__all__) == defined
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_message_ends_with_the_remedy(cls: type[OpwrightError]) -> None:
    assert str(cls("something happened", fix="do this")) == "something happened\n  → do this"
    assert str(cls("something happened")) == "something happened"
    assert cls("a").fix is None


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_pickling(cls: type[OpwrightError]) -> None:
    error = cls("something happened", fix="do this")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is cls
    assert str(copied) == str(error)


def test_a_compiler_s_output_survives_pickling() -> None:
    copied = pickle.loads(pickle.dumps(CompileError("no", log="line 3: error", fix="fix it")))
    assert (copied.message, copied.log, copied.fix) == ("no", "line 3: error", "fix it")


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("ContractError", TypeError), ("ArgumentError", ValueError), ("KernelRefusedError", RuntimeError),
        ("SignatureMismatchError", TypeError), ("CompileError", RuntimeError), ("CacheError", OSError),
    ],
)  # fmt: skip
def test_who_knows_only_python_s_exceptions_can_catch_them(name: str, builtin: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), builtin)
