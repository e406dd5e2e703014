"""A report of ``opwright judge`` as a run on an H100 might write it (made-up figures)."""

from __future__ import annotations

import dataclasses

from opwright.results import Coverage, Finding, Status
from opwright.results.judged import Judged, JudgeReport, Times
from tests.report.sample_records import ENDLESS, MACHINE, make_verdict

_DECLARED = """@ow.op('judged::level1_{i}_softmax', where=['dim % 2 == 0'])
def level1_{i}_softmax(x: Float32[Tensor, "batch_size dim"]) -> Float32[Tensor, "batch_size dim"]:
    return task.reference(x)
level1_{i}_softmax.sizes(batch_size=(16,), dim=(16384,))"""
_WRONG = Finding(
    "values", Status.FAIL, "batch_size=1 dim=3 dtype=float32 layout=contiguous",
    "1 of 3 elements differ\n  at (0, 2): expected 0.25, got 0.0",
    "opwright judge runs --write-contract contracts && opwright check contracts/judged_level1_1_softmax.py",
    coverage=Coverage(3, 120), ordinary_case="batch_size=16 dim=1025 dtype=float32 layout=contiguous",
)  # fmt: skip
_CHEAT = Finding("cheats", Status.FAIL, "batch_size=16 dim=64", "it calls the reference")
_RACE = Finding(
    "memory", Status.FAIL, "batch_size=2 dim=65", "a race: two threads write out[3]", coverage=Coverage(9, 40)
)
_TORCHS = Finding(
    "own work", Status.WARNING, "batch_size=16 dim=64", "torch computes it within the kernel: aten::softmax",
    remedy="compute it in Triton, or attach this function with @op.baseline",
)  # fmt: skip
_RIGHT = tuple(
    Finding(name, Status.PASS, coverage=Coverage(n, n))
    for name, n in (
        ("values", 120),
        ("memory", 40),
        ("special values", 12),
        ("determinism", 3),
        ("execution context", 2),
    )
)
# What each of a few candidates in turn has: the verdict, its findings, and what the format has recorded.
_KINDS: tuple[tuple[Status, tuple[Finding, ...], str], ...] = (
    (Status.PASS, _RIGHT, "correct"),
    (Status.FAIL, (_WRONG, *_RIGHT[1:]), "wrong"),
    (Status.PASS, _RIGHT, "correct"),
    (Status.FAIL, (_CHEAT, *_RIGHT), "correct"),
    (Status.WARNING, (*_RIGHT, _TORCHS), "correct"),
    (Status.FAIL, (_RIGHT[0], _RACE), "correct"),
    (Status.INCONCLUSIVE, (*_RIGHT, ENDLESS), ""),
)


def make_judged(number: int, *, timed: bool = True) -> JudgeReport:
    """A report with so many candidates, and one that cannot run here."""
    rows = [_row(i, timed) for i in range(number)]
    refused = Judged(
        "kernelbench", "runs/mine/level_1_problem_0_sample_9_kernel.py", "level1/0_Softmax.py", Status.REFUSED,
        reason="it imports tilelang, which is not installed",
    )  # fmt: skip
    unread = (("runs/mine/notes.py", "no problem belongs to it"),)
    return JudgeReport(MACHINE, (*rows, refused), unread, 812.0, "confined: writes and network")


def _row(i: int, timed: bool) -> Judged:
    status, findings, claimed = _KINDS[i % len(_KINDS)]
    name, language, device = f"mine_{i % 4}", ("triton", "cuda")[i % 2], ("cuda", "cpu-sim")[not timed]
    verdict = make_verdict(
        op=f"judged::level1_{i}_softmax", kernel=name, backend=language, device=device, status=status,
        findings=findings, seconds=5 + i % 17, parts={},
    )  # fmt: skip
    right = status.is_right and timed
    times = Times(12.0 + i % 50, 11.5 + i % 50, 12.6 + i % 50, 80, 31.0, 14.5, 8.25, "NVIDIA H100") if right else None
    row = Judged(
        "kernelbench", f"runs/mine/level_1_problem_{i // 4}_sample_{i % 4}_kernel.py", f"level1/{i // 4}_Softmax.py",
        status, claimed, "correct" if claimed else "",
        "did not end in time: gradients" if findings[-1] is ENDLESS else "",
        contract=_DECLARED.format(i=i), fixed=("dim is even: the reference refuses 3",), verdict=verdict,
    )  # fmt: skip
    return dataclasses.replace(row, times=times)
