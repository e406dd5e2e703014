"""What each check costs and finds: its time on the operators in tests/operators, and which planted faults it sees.

``python benchmarks/check_time.py FILE`` writes the record and prints two tables: checks by faults found per second, and
the time of each right kernel. Everything runs in one process, at quick level, on a CPU; "values" runs every case for
"metadata" and "inputs unchanged", too, whose own time is only what they add. Seconds are of the processor, of all
threads, so that other work beside it matters little; compilers are processes of their own, and do not count.
"""

from __future__ import annotations

import collections
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from opwright.checks.context import Context
from opwright.checks.table import CHECKS
from opwright.contract.inputs.cases import cases
from opwright.machine import this_machine
from opwright.results import Finding, Status
from opwright.runtime.kernel import under_check
from opwright.runtime.op import Op
from opwright.target import Target
from tests.operators.faults import FAULTS
from tests.operators.verdicts import OPERATORS

Row = dict[str, Any]


def main(out: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    chosen = [(op, kernel) for op in OPERATORS for kernel in op.kernels if op.kernels[kernel].backend == "python"]
    rows = []
    for number, (op, kernel) in enumerate(chosen, 1):
        rows.append(checked(op, kernel))
        spent = sum(rows[-1]["seconds"].values())
        print(f"{number}/{len(chosen)} {op.contract.name}:{kernel} {spent:.1f} s", file=sys.stderr, flush=True)
    found: dict[str, int] = collections.Counter(name for row in rows if row["is_wrong"] for name in row["failed"])
    alone = collections.Counter(row["failed"][0] for row in rows if row["is_wrong"] and len(row["failed"]) == 1)
    seconds = {name: sum(row["seconds"][name] for row in rows) for name in ("inputs", *CHECKS)}
    order = sorted(seconds, key=lambda name: -found[name] / max(seconds[name], 1e-3))
    table = [[n, round(seconds[n], 1), found[n], alone[n], round(found[n] / max(seconds[n], 1e-3), 2)] for n in order]
    wrong = sum(row["is_wrong"] for row in rows)
    print(
        f"{'check':20}{'seconds':>9}{'found':>7}{'alone':>7}{'per second':>12}   of {wrong} faults, {len(rows)} kernels"
    )
    for name, spent, count, only, rate in table:
        print(f"{name:20}{spent:9}{count:7}{only:7}{rate:12}")
    for row in rows:
        if not row["is_wrong"]:
            print(f"{row['kernel']:45}{sum(row['seconds'].values()):7.1f} s")
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = {"machine": this_machine().to_json(), "torch": torch.__version__, "faults": wrong}
    columns = ["check", "seconds", "faults found", "by no other check", "faults per second"]
    head |= {"columns": columns, "checks": table}
    out.write_text(json.dumps(head, indent=1)[:-2] + f',\n "kernels": [\n{lines}\n ]\n}}\n')


def checked(op: Op, kernel: str) -> Row:
    """The seconds and the verdict of each check of one kernel."""
    checkers = {check.name: check.examines for check in CHECKS.values() if check.examines}
    context = Context(op, kernel, Target("cpu"), [], checkers=checkers)
    seconds, failed = {}, []
    with op.only(kernel), under_check():
        started = time.process_time()
        context.cases = cases(op.contract, "quick", op.kernels[kernel].spec.dtypes, admits=context.admits)
        seconds["inputs"] = time.process_time() - started
        for name, check in CHECKS.items():
            started = time.process_time()
            results = list(check.run(context))
            seconds[name] = time.process_time() - started
            if any(isinstance(r, Finding) and r.status is Status.FAIL for r in results):
                failed.append(name)
    return {
        "operator": op.contract.name,
        "kernel": kernel,
        "is_wrong": f"{op.contract.name}:{kernel}" in FAULTS,
        "cases": len(context.cases),
        "failed": failed,
        "seconds": {name: round(spent, 3) for name, spent in seconds.items()},
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
