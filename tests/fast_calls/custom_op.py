"""What a call of an operator has in common with one of ``torch.library.custom_op``, and what it has not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.fast_calls.world import NOT_EXPRESSIBLE

__all__ = ["in_common"]

_RAISED = "raised"


def in_common(slow: Sequence[Any], custom: Sequence[Any], writes: bool) -> tuple[list[Any], list[Any]]:
    """The records of steps without what differs by design.

    Args:
        writes: whether an operator writes its arguments: after a difference by design, later calls get other ones.
    """
    ones: list[Any] = []
    others: list[Any] = []
    for step, other_step in zip(slow, custom, strict=True):
        if NOT_EXPRESSIBLE in other_step:
            ones.append([])
            others.append([])
            if writes:
                break
            continue
        pairs, ends = _calls_in_common(step, other_step)
        ones.append([one for one, _ in pairs])
        others.append([other for _, other in pairs])
        if ends and writes:
            break
    return ones, others


def _calls_in_common(step: Sequence[Any], other_step: Sequence[Any]) -> tuple[list[tuple[Any, Any]], bool]:
    pairs: list[tuple[Any, Any]] = []
    for slow, custom in zip(step, other_step, strict=False):
        if _raised(slow) and len(slow) > 2:
            return pairs, True
        if not (isinstance(slow, dict) and isinstance(custom, dict)):
            pairs.append((isinstance(slow, dict), isinstance(custom, dict)))
            continue
        ones: dict[str, Any] = {}
        others: dict[str, Any] = {}
        pairs.append((ones, others))
        for part in ("forward", "backward"):
            if difference_by_design(slow, custom, part) is not None:
                return pairs, True
            ones[part], others[part] = _without_layout(slow.get(part)), _without_layout(custom.get(part))
        if ones["forward"] == others["forward"] == _RAISED:  # what custom_op had written before it raised is not ours
            return pairs, True
    return pairs, False


def difference_by_design(slow: dict[str, Any], custom: dict[str, Any], part: str) -> str | None:
    """Why a part of a call may differ, with what follows; None if it may not."""
    one, other = slow.get(part), custom.get(part)
    if part == "backward" and "autocast" in slow.get("backward_inside", ()):
        return "a derived gradient is not cast by autocast"
    if _raised(one) and len(one) > 2 and not _raised(other):
        return "a contract is stricter than a schema"
    if _raised(other) and _is_meta(one):
        return "opwright knows shapes from annotations, custom_op from the reference"
    if _raised(other) and _aliases(slow.get("forward")):
        return "custom_op refuses a kernel that returns an argument or a view of one"
    if slow.get("forward") == ("NoneType", "None") or custom.get("forward") == ("NoneType", "None"):
        tracked = "requires_grad=True" in str(slow.get("arguments"))
        return "custom_op has no gradient of what it writes" if tracked or _raised(other) else None
    return None


def _raised(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and value[0] == _RAISED


def _is_meta(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3 and not _raised(value)  # without values


def _aliases(value: Any) -> bool:
    if isinstance(value, tuple) and len(value) > 7:
        return 0 in value[2] or value[-3:-1] != ("is=()", "shares=()")  # an empty one shares no memory
    return isinstance(value, tuple) and any(map(_aliases, value))


def _without_layout(value: Any) -> Any:
    """Values, dtypes, shapes, and whether they require a gradient."""
    if _raised(value):
        return _RAISED
    if isinstance(value, tuple) and len(value) > 7:
        _, dtype, shape, _, tracked, *_, bits = value
        return dtype, shape, tracked, bits
    if isinstance(value, tuple) and len(value) == 5 and str(value[3]).startswith("torch.sparse"):
        _, dtype, shape, _, bits = value  # as autograd alone gives it; custom_op adds zeros for outputs without one
        return dtype, shape, "requires_grad=False", bits
    if isinstance(value, tuple | list):
        return tuple(map(_without_layout, value))
    return value
