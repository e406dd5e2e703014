"""Every right kernel of the stack passes every check, every wrong one fails the check that is named."""

from __future__ import annotations

import functools

import pytest

import opwright as ow
from tests.operators.faults import FAULTS
from tests.operators.verdicts import OPERATORS


@functools.cache
def verdicts(operator):
    report = ow.check(operator)
    return {verdict.kernel: verdict for verdict in report.verdicts}


# Written in place, random choices of rows, several outputs: one operator of each kind; `exhaustive` runs the others.
_ALWAYS = ("cross_entropy", "route", "write_cache")


def _on_request(operator: ow.Op):
    name = operator.contract.name
    return pytest.param(operator, marks=[pytest.mark.exhaustive] * (name not in _ALWAYS), id=name)


@pytest.mark.slow  # every check of every kernel: ten to seventy seconds each on two quiet cores
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("operator", [_on_request(operator) for operator in OPERATORS])
def test_the_right_kernel_passes_every_check_and_the_wrong_one_does_not(operator):
    for kernel, verdict in verdicts(operator).items():
        fault = FAULTS.get(f"{operator.contract.name}:{kernel}")
        if fault is None:
            assert verdict.status in ("pass", "warning"), verdict.failures
        else:
            assert fault in [f.check for f in verdict.failures], kernel


def test_a_contract_is_short():
    import inspect

    for operator in OPERATORS:
        assert len(inspect.getsource(operator.contract.function).splitlines()) <= 20
    assert len(OPERATORS) == len(FAULTS)
