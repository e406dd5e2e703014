"""The places that a captured function's tensors and constants come from, and whether one of them has changed.

A place is an entry of a dictionary, a list or a tuple, an attribute, a variable of a closure, or a global variable.
``places_search.py`` finds the places.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

import torch
from torch import Tensor

__all__ = ["CONSTANTS", "MISSING", "Places"]

# Two values of these types are the same constant if they have the same type and text.
CONSTANTS = (
    type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout,
    torch.memory_format, enum.Enum, range, slice, frozenset,
)  # fmt: skip


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


MISSING = _Missing()


class Places:
    """Places with the values that they had when ``remember`` was called last. The values are kept alive.

    Attributes:
        tensors: the tensors in these places.
        aliases: a tensor for each of their memories, which keeps it alive whatever becomes of the tensor.
        codes: the code for which the places were looked for.
    """

    def __init__(self, codes: Collection[CodeType] = ()) -> None:
        self.codes = frozenset(codes)
        self._names: list[tuple[Mapping[Any, Any], Collection[str] | None, str]] = []
        self._attributes: list[tuple[Any, tuple[str, ...], str]] = []
        self._sequences: list[tuple[Sequence[Any], str]] = []
        self._sized: list[Any] = []
        self.tensors: list[Tensor] = []
        self.aliases: list[Tensor] = []
        self._compared: list[Tensor] = []
        self._scalars: list[Tensor] = []
        self._values: dict[tuple[Any, ...], tuple[Any, str]] = {}

    # -- building -----------------------------------------------------------------------------------------------------

    def add_names(self, values: Mapping[Any, Any], names: Collection[str] | None, label: str) -> None:
        """Add entries of a dictionary: those of these names, whether it has them yet or not; all of them for None."""
        self._names.append((values, names, label))

    def add_attributes(self, owner: Any, names: tuple[str, ...], label: str) -> None:
        """Add attributes of an object that has no dictionary for them."""
        self._attributes.append((owner, names, label))

    def add_items(self, values: Sequence[Any], label: str) -> None:
        """Add the items of a list or another mutable sequence."""
        self._sequences.append((values, label))

    def add_size(self, values: Collection[Any]) -> None:
        """Add the size of a container, but not what is in it."""
        self._sized.append(values)

    def add_tensor(self, tensor: Tensor, device: torch.device | None, *, compares_address: bool = True) -> None:
        """Add a tensor in one of the places. A number on a CPU is a constant of a graph on a GPU."""
        try:
            tensor.data_ptr()
        except RuntimeError:  # a sparse tensor, or one of a subclass, is compared by identity only
            return
        self.tensors.append(tensor)
        self.aliases.append(tensor.detach())
        if compares_address:
            self._compared.append(tensor)
        if device is not None and device.type != "cpu" and tensor.device.type == "cpu" and tensor.dim() == 0:
            self._scalars.append(tensor)

    # -- comparing ----------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """Compare with the present values from now on."""
        self._values = dict(self._entries())
        self._addresses = self._addresses_now()
        self._numbers = self._numbers_now()
        self._prepare()

    def hold(self) -> bool:
        """Whether all places have the values that were remembered. It is fast if nothing was assigned."""
        try:
            if self._is_untouched():
                return not self._scalars or self._numbers_now() == self._numbers
        except (KeyError, IndexError, AttributeError, ValueError):  # ValueError: an empty cell
            pass
        return self.change() is None

    def change(self) -> str | None:
        """A place whose value has changed; None if there is none. If there is none, these values are remembered."""
        now = dict(self._entries())
        for key in [*self._values, *(key for key in now if key not in self._values)]:
            before, label = self._values.get(key, (MISSING, ""))
            after, label = now.get(key, (MISSING, label))
            if not _is_same(before, after):
                return label
        if (self._addresses, self._numbers) != (self._addresses_now(), self._numbers_now()):
            return "the memory of a tensor"
        self._values = now
        self._prepare()
        return None

    def _entries(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, str]]]:
        """Each place: what identifies it, its value and its name in messages."""
        for values, names, label in self._names:
            present = list(values) if names is None else [name for name in names if name in values]
            for name in present:
                value = values.get(name, MISSING)
                yield (id(values), name), (value, _joined(label, name, is_item=names is None))
        for owner, attributes, label in self._attributes:
            for name in attributes:
                yield (id(owner), name), (_attribute(owner, name), _joined(label, name))
        for items, label in self._sequences:
            for i, item in enumerate(list(items)):
                yield (id(items), i), (item, f"{label}[{i}]")

    def _prepare(self) -> None:
        """Prepare a quick look, which every replay takes: one expression over all places. A large model has hundreds.

        It is false, or raises, if a place has another object or a container another size; then the values decide.
        """
        terms: dict[str, None] = {}
        names: dict[str, Any] = {}

        def named(value: Any) -> str:
            name = f"v{id(value)}"
            names[name] = value  # which keeps it alive, so that no other value gets its name
            return name

        sized = [*(v for v, _, _ in self._names), *(items for items, _ in self._sequences), *self._sized]
        names["empty"] = tuple(values for values in sized if not values)  # most are the hooks of modules
        terms["not any(empty)"] = None
        for values in filter(None, sized):
            terms[f"len({named(values)}) == {len(values)}"] = None
        for values, wanted, _ in self._names:
            for key in list(values) if wanted is None else [name for name in wanted if name in values]:
                item = repr(key) if type(key) in (str, int) else named(key)
                terms[f"{named(values)}[{item}] is {named(values[key])}"] = None
        for owner, attributes, _ in self._attributes:
            for name in attributes:
                value = _attribute(owner, name)
                terms["False" if value is MISSING else f"{named(owner)}.{name} is {named(value)}"] = None
        for items, _ in self._sequences:
            for i, item in enumerate(list(items)):
                terms[f"{named(items)}[{i}] is {named(item)}"] = None
        for tensor, address in zip(self._compared, self._addresses, strict=True):
            terms[f"{named(tensor)}.data_ptr() == {address}"] = None
        self._is_untouched: Callable[[], bool] = eval(f"lambda: {' and '.join(terms)}", names)

    def _addresses_now(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._compared))

    def _numbers_now(self) -> list[str]:
        return [repr(tensor.item()) for tensor in self._scalars]


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except (AttributeError, ValueError):
        return MISSING


def _joined(label: str, name: object, is_item: bool = False) -> str:
    if name == "cell_contents":  # the label of a closure's variable is complete
        return label
    if is_item:
        return f"{label}[{name!r}]"
    return f"{label}{name}" if label.endswith(" ") else f"{label}.{name}"


def _is_same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, tuple) and not isinstance(before, torch.Size):
        return len(before) == len(after) and all(map(_is_same, before, after))
    is_number = type(before).__module__ == "numpy" and hasattr(before, "item") and getattr(before, "ndim", 1) == 0
    return (isinstance(before, CONSTANTS) or is_number) and repr(before) == repr(after)
