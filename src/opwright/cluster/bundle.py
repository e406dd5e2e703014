"""A work item of a sweep as it is sent to another machine."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from opwright.cluster.operators import SentOperator, receive, send
from opwright.runtime.op import Op
from opwright.sweep.work_item import WorkItem

__all__ = ["Bundle", "Packer", "unpack"]


# Variables about one machine: each has its own cache folder.
_OF_A_MACHINE = ("OPWRIGHT_CACHE_DIR", "OPWRIGHT_SUPPLIER", "OPWRIGHT_CORES")


@dataclass(frozen=True)
class Bundle:
    """A work item in bytes, with what it needs of the process that it comes from.

    Attributes:
        item: a pickle, in which operators are numbers.
        operators: the numbers of those operators, which travel beside it.
    """

    item: bytes
    operators: tuple[int, ...]
    folder: str
    environment: Mapping[str, str]


@dataclass
class Packer:
    """Packs the items of one sweep. Each operator is packed once.

    Attributes:
        store: puts a packed operator where other machines can take it, and returns what stands for it.
    """

    store: Any
    _stored: dict[int, Any] = field(default_factory=dict)
    _kept: list[Op] = field(default_factory=list)  # so that no other object gets the id of one

    def pack(self, item: WorkItem[Any]) -> tuple[Bundle, list[Any]]:
        """The bundle, and what ``store`` has returned for each of its operators. Raises whatever reducers raise."""
        buffer = io.BytesIO()
        pickler = _Pickler(buffer, self._place_of)
        pickler.dump(item)
        bundle = Bundle(
            item=buffer.getvalue(),
            operators=tuple(pickler.used),
            folder=os.getcwd(),
            environment={k: v for k, v in os.environ.items() if k.startswith("OPWRIGHT_") and k not in _OF_A_MACHINE},
        )
        return bundle, [self._stored[number] for number in bundle.operators]

    def _place_of(self, operator: Op) -> int:
        number = id(operator)
        if number not in self._stored:
            self._stored[number] = self.store(send(operator))
            self._kept.append(operator)
        return number


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def __init__(self, file: io.BytesIO, place_of: Any) -> None:
        super().__init__(file)
        self._place_of = place_of
        self.used: dict[int, None] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if type(obj) is not Op:
            return None
        number: int = self._place_of(obj)
        self.used[number] = None
        return number


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, operators: Mapping[int, Op]) -> None:
        super().__init__(file)
        self._operators = operators

    def persistent_load(self, pid: Any) -> Op:
        return self._operators[pid]


def unpack(bundle: Bundle, operators: Sequence[SentOperator]) -> WorkItem[Any]:
    """The item on this machine; its process takes the folder and opwright's variables of the one that has sent it.

    Args:
        operators: those of the bundle, in its order.
    """
    with contextlib.suppress(OSError):  # a machine with other folders
        os.chdir(bundle.folder)
    os.environ.update(bundle.environment)
    received = {number: receive(sent) for number, sent in zip(bundle.operators, operators, strict=True)}
    item: WorkItem[Any] = _Unpickler(io.BytesIO(bundle.item), received).load()
    return item
