"""The verdicts of every kernel of the operators in this folder, as a compact record.

``python -m tests.operators.verdicts cuda OUT.json`` checks them on a GPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import opwright as ow
from opwright.machine import this_machine
from tests.operators import attention, numeric, transformer
from tests.operators.faults import FAULTS

MODULES = (transformer, attention, numeric)
OPERATORS = [value for module in MODULES for value in vars(module).values() if isinstance(value, ow.Op)]


def main(device: str, out: Path) -> int:
    """Check all, print a line each; the exit status says whether the right ones pass and the wrong ones do not."""
    report = ow.check(*OPERATORS, device=device, jobs=6)
    rows, surprises = [], 0
    for verdict in report.verdicts:
        fault = FAULTS.get(f"{verdict.op.partition('::')[2]}:{verdict.kernel}")
        is_right = verdict.status.value == "pass" if fault is None else fault in [f.check for f in verdict.failures]
        surprises += not is_right
        found = [f.check for f in verdict.failures]
        rows.append(
            [verdict.op, verdict.kernel, verdict.device, verdict.status.value, fault or "", found, verdict.seconds]
        )
        print(*rows[-1], "" if is_right else f"UNEXPECTED {verdict.reason} {verdict.failures}", flush=True)
    columns = ["operator", "kernel", "device", "status", "planted fault, found by", "failed checks", "seconds"]
    out.write_text(json.dumps({"machine": this_machine().to_json(), "columns": columns, "rows": rows}, indent=1) + "\n")
    return surprises


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1], Path(sys.argv[2]))))
