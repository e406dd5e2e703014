"""A plugin of pytest: the fixture ``kernelsim``, whose launches run in several orders of threads and programs.

Load it with ``pytest -p kernelsim.pytest``, or with ``pytest_plugins = ["kernelsim.pytest"]`` in a ``conftest.py``.
"""

from __future__ import annotations

import types
from collections.abc import Iterator

import pytest

import kernelsim as _kernelsim
from kernelsim.settings import options

__all__ = ["kernelsim", "pytest_addoption", "pytest_generate_tests"]

_FIXTURE, _OPTION = "kernelsim", "--kernelsim-orders"
_ORDERS = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("kernelsim").addoption(
        _OPTION, type=int, default=_ORDERS, metavar="N",
        help="run each test with the fixture kernelsim in N orders of threads: the first is the plain one "
        f"(default: {_ORDERS})",
    )  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _FIXTURE in metafunc.fixturenames:
        orders = metafunc.config.getoption(_OPTION)
        if orders < 1:
            raise pytest.UsageError(f"{_OPTION} must be at least 1, got {orders}")
        metafunc.parametrize(_FIXTURE, range(orders), indirect=True, ids=lambda order: f"order{order}")


@pytest.fixture
def kernelsim(request: pytest.FixtureRequest) -> Iterator[types.ModuleType]:
    """The module ``kernelsim``, in a block of one order of threads. A finding fails the test, with its line."""
    order = getattr(request, "param", 0)
    with options(seed=order or None):
        yield _kernelsim
