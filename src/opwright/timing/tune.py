"""Measures and stores the fastest kernels by size; calls then use them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

from opwright.contract.inputs.case import Size
from opwright.errors import CacheError
from opwright.machine import this_machine
from opwright.results import BenchReport, Crossover, Measurement
from opwright.runtime.op import Op
from opwright.timing.request import Request
from opwright.timing.run import load_operators, measure

__all__ = ["tune"]


def tune(
    *targets: Op | str,
    device: str | None = None,
    sizes: Mapping[str, Sequence[Size]] | None = None,
    dtypes: Sequence[str] = (),
    quick: bool = False,
    iters: int | None = None,
    clear: bool = False,
    progress: Callable[[str], None] | None = None,
    on_measurement: Callable[[Measurement], None] | None = None,
) -> BenchReport:
    """Measure the kernels of operators at several sizes, and let calls choose the fastest from now on.

    The table is stored in the cache folder for these kernels on this machine, and later processes use it too; an edit
    of a kernel makes it invalid. If the fastest kernel is not applicable (``when``, dtypes), calls choose as without a
    table. Only correct kernels are compared, and SAME changes nothing.

    Args:
        targets, device, sizes, dtypes, quick, iters, progress, on_measurement: as for ``ow.bench``. Without sizes,
            the operator's own or about eight, from launch-bound to larger than the cache.
        clear: remove the tuning, and measure nothing.

    Returns:
        A report whose ``crossovers`` are the fastest kernels by size; empty if there is only one kernel.

    Raises:
        TargetError, CheckError: a target, device, size or dtype does not exist.
        CacheError: the cache folder cannot be written.
    """
    operators = load_operators(targets)
    if clear:
        for operator in operators:
            _store(operator.clear_tuning)
        return BenchReport(this_machine().to_json(), ())
    quiet: Callable[[object], None] = lambda what: None  # noqa: E731
    report = measure(
        Request(
            operators,
            device=device,
            sizes=sizes or {},
            dtypes=dtypes,
            directions=("forward",),
            baselines=(),
            quick=quick,
            iters=iters,
            progress=progress or quiet,
            on_measurement=on_measurement or quiet,
            caches=("warm",),
            sweep=True,
        )
    )
    stored: list[Crossover] = []
    for operator in operators:
        own = [dataclasses.replace(c, stored=True) for c in report.crossovers if c.op == operator.contract.qualname]
        if own:
            _store(functools.partial(operator.apply_tuning, own))
        stored += own
    return dataclasses.replace(report, crossovers=tuple(stored))


def _store(action: Callable[[], object]) -> None:
    try:
        action()
    except OSError as error:
        raise CacheError(
            f"the tuning cannot be stored: {error}", fix="set OPWRIGHT_CACHE_DIR to a folder you may write"
        ) from error
