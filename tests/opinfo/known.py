"""Bugs of torch that the table finds, each verified by hand: they are no false alarms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["KNOWN", "Bug", "known_bug"]


@dataclass(frozen=True)
class Bug:
    """A bug of torch.

    Attributes:
        functions: the names of OpInfos that it affects.
        device: where; "" for every device.
        checks: the checks of opwright that find it.
        evidence: an input, what torch returns, and what is right.
    """

    functions: tuple[str, ...]
    device: str
    checks: tuple[str, ...]
    evidence: str


KNOWN: tuple[Bug, ...] = (
    Bug(
        ("nn.functional.max_unpool2d",),
        "",
        ("gradients", "opcheck"),
        "max_unpool2d(x, indices, 2, 2).sum().backward() with indices = arange(4).view(1, 1, 2, 2).expand(5, 2, 2, 2)"
        ".contiguous().mT.contiguous().mT raises 'view size is not compatible with input tensor's size and stride'; "
        "the forward takes the same indices, and with contiguous ones the backward is right (torch 2.13, CPU).",
    ),
    Bug(
        ("nn.functional.layer_norm", "native_layer_norm"),
        "cpu",
        ("gradients",),
        "The bias' gradient of layer_norm(x, (64,), w, b) with x = torch.ones(4100, 64).half(), an incoming gradient "
        "of ones and one thread is 2048: it is summed up in float16 (torch 2.15, CPU).",
    ),
    Bug(
        ("bincount",),
        "",
        ("metadata",),
        "torch.bincount(x, weights) of empty int64 and float64 tensors is int64, else float64 (torch 2.13, CPU).",
    ),
    Bug(
        ("median", "nanmedian"),
        "cpu",
        ("values", "gradients"),
        "torch.tensor([[3.0], [1.0], [2.0]]).expand(3, 2).median(1) has the values [1, 1, 0] instead of [3, 1, 2]: "
        "along an expanded dim it reads other memory; a contiguous copy is right (torch 2.13, CPU).",
    ),
    Bug(
        ("mv", "addmv"),
        "cpu",
        ("values", "contract", "gradients"),
        "torch.mv(x, v) in float16 and bfloat16 ends the process with SIGSEGV where the two rows of x are 2³¹ + 64 "
        "elements apart; in float32 it is right (torch 2.13, CPU).",
    ),
    Bug(
        ("linalg.eigvals",),
        "cpu",
        ("values",),
        "torch.linalg.eigvals(x) with x = torch.randn(3, 3) and x[0, 1] = nan prints 'Intel oneMKL ERROR: Parameter 3 "
        "was incorrect on entry to SGEBAL' and ends the process with SIGSEGV; so does x[::2] = inf (torch 2.13, CPU).",
    ),
)


def known_bug(function: str, device: str, checks: Sequence[str]) -> str:
    """The evidence of the bug that explains all of these findings; empty if none does."""
    for bug in KNOWN:
        if function in bug.functions and bug.device in ("", device) and set(checks) <= set(bug.checks):
            return bug.evidence
    return ""
