"""``ow.ProcessGroup``: how an operator that communicates names the processes that it communicates with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from opwright.errors import ArgumentError
from opwright.internals.process_groups import group_named, has_group_names

__all__ = ["ProcessGroup", "name_of_group"]


if TYPE_CHECKING:  # which torch's collectives take: to type checkers it is no str, and at run time nothing else
    from torch.distributed.distributed_c10d import GroupName as _Name
else:
    _Name = str


class ProcessGroup(_Name):  # type: ignore[misc]  # a NewType
    """A process group as an operator's argument: its name, as in the schemas of torch's own collectives.

    Annotates an argument. A call takes one of torch's process groups, a ``DeviceMesh`` of one dim, or a name; the
    reference, kernels and rules get this. It is a ``str``, which ``torch.distributed._functional_collectives`` take as
    they take a group, with the group's size and this process's rank in it. In shapes and conditions, the argument's
    name is the size: ``-> Float[Tensor, "group*m n"]``, ``where="m % group == 0"``.
    """

    name: str  # a plain str, of which torch.compile (torch 2.11) makes none here

    def __new__(cls, group: Any) -> ProcessGroup:
        """Raises TypeError if it is neither a process group, nor a mesh of one dim, nor a name."""
        name = name_of_group(group)
        made = super().__new__(cls, name)
        made.name = name
        return made

    def resolve(self) -> Any:
        """torch's process group, as ``torch.distributed.all_reduce(x, group=group.resolve())`` takes it.

        Raises:
            ArgumentError: this process has no group with this name.
        """
        found = group_named(self)
        if found is None:
            raise ArgumentError(f"this process has no process group {str(self)!r}", fix=_fix())
        return found

    def size(self) -> int:
        """The number of its processes."""
        return int(self.resolve().size())

    def rank(self) -> int:
        """The rank of this process in it."""
        return int(self.resolve().rank())

    def __repr__(self) -> str:
        return f"ProcessGroup({str(self)!r})"


def _fix() -> str:
    if not has_group_names:
        return "use a torch with torch.distributed, 2.11 to 2.15"
    return "call torch.distributed.init_process_group first, and pass a group that this process belongs to"


def name_of_group(group: Any) -> str:
    """The name of one of torch's process groups, of a mesh of one dim, or of what is a name already. torch.compile
    traces into this."""
    if isinstance(group, ProcessGroup):
        return group.name
    if isinstance(group, str):
        return str(group)
    if isinstance(group, dist.ProcessGroup):
        return str(group.group_name)
    if hasattr(group, "get_group") and group.ndim == 1:
        return str(group.get_group().group_name)
    raise TypeError(f"the group must be a process group, got {type(group).__name__}")
