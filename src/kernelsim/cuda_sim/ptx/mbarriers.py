"""PTX mbarriers as C++: barriers in shared memory that count arrivals and the bytes of bulk copies."""

from __future__ import annotations

from kernelsim.cuda_sim.ptx.instruction import Instruction

__all__ = ["copies_arrive", "mbarrier"]

_SIM = "kernelsim"


def mbarrier(i: Instruction) -> str:
    translate = {
        "init": _init, "inval": _inval, "arrive": _arrive, "arrive_drop": _arrive, "expect_tx": _transaction,
        "complete_tx": _transaction, "test_wait": _wait, "try_wait": _wait, "pending_count": _pending_count,
    }.get(i.parts[1])  # fmt: skip
    if translate is None:
        raise i.refused("this operation of an mbarrier is not translated")
    return translate(i)


def copies_arrive(i: Instruction) -> str:
    """``cp.async.mbarrier.arrive``: an arrival once the thread's asynchronous copies are complete.

    Without ``.noinc`` it first adds the arrival to those that the phase needs.
    """
    count = "1u" if i.has("noinc") else "0u"
    return f"{_SIM}::wait_for_all_copies(); {_SIM}::mbarrier_arrive({i.address(0)}, {count}, 0u, true);"


def _init(i: Instruction) -> str:
    return f"{_SIM}::mbarrier_init({i.address(0)}, {i.value(1, 'uint32_t')});"


def _inval(i: Instruction) -> str:
    return f"{_SIM}::mbarrier_inval({i.address(0)});"


def _transaction(i: Instruction) -> str:
    sign = "-" if i.has("complete_tx") else ""
    return f"{_SIM}::mbarrier_expect_bytes({i.address(0)}, {sign}int64_t({i.value(1, 'uint32_t')}));"


def _arrive(i: Instruction) -> str:
    """The token is the first operand; it may be left out on an mbarrier of a cluster's shared memory."""
    gives_token = not i.operands[0].startswith("[")
    at = int(gives_token)
    given = i.value(at + 1, "uint32_t") if len(i.operands) > at + 1 else None
    count, expected = ("1u", given) if i.has("expect_tx") else (given or "1u", "0u")
    if i.has("arrive_drop"):
        if i.has("expect_tx") or (gives_token and i.operands[0] != "_"):
            raise i.refused("its form without a token and without bytes is translated")
        return f"{_SIM}::mbarrier_arrive_and_drop({i.address(at)}, {count});"
    releases = "false" if i.has("relaxed") else "true"
    call = f"{_SIM}::mbarrier_arrive({i.address(at)}, {count}, {expected}, {releases})"
    return i.write(0, call) if gives_token else f"{call};"


def _wait(i: Instruction) -> str:
    """Both kinds of waits may return before the phase ends; here they do so only if no thread can run."""
    how, kind = ("parity", "uint32_t") if i.has("parity") else ("token", "uint64_t")
    call = f"{_SIM}::mbarrier_wait({i.address(1)}, {i.value(2, kind)}, {_SIM}::PhaseIs::{how}, true)"
    return i.write(0, call)


def _pending_count(i: Instruction) -> str:
    return i.write(0, f"uint32_t({i.value(1, 'uint64_t')})")
