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
    """Check all, print a line for each kernel and write it; returns how many right ones fail or wrong ones pass."""
    columns = ["operator", "kernel", "device", "status", "planted fault, found by", "failed checks", "seconds"]
    rows, surprises = [], []

    def note(verdict: ow.results.Verdict) -> None:
        fault = FAULTS.get(f"{verdict.op.partition('::')[2]}:{verdict.kernel}", "")
        failed = sorted({f.check for f in verdict.failures})
        rows.append([verdict.op, verdict.kernel, verdict.device, verdict.status.value, fault, failed, verdict.seconds])
        print(*rows[-1], flush=True)
        if (verdict.status.value not in ("pass", "warning")) if not fault else (fault not in failed):
            surprises.append(verdict)
            print("UNEXPECTED", verdict.reason, *(f.message for f in verdict.failures), flush=True)
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        head = f'{{\n "machine": {json.dumps(this_machine().to_json())},\n "columns": {json.dumps(columns)},\n'
        out.write_text(f'{head} "rows": [\n{lines}\n ]\n}}\n')

    ow.check(*OPERATORS, device=device, events=ow.Events(finished=note))
    return len(surprises)


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1], Path(sys.argv[2]))))
