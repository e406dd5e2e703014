"""What is added to a task of robust-kbench: the functions and modules that are judged, for either direction."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BACKWARD", "FORWARD", "Direction"]


@dataclass(frozen=True)
class Direction:
    """A direction: its word, which is what a kernel exports, and the texts.

    Attributes:
        needs: what the task's file must define.
        added: after the task's file, with the places ``constants``, ``inputs`` and ``constructor``.
        candidate: after both, with ``folder``, ``entry`` and ``flags``.
    """

    name: str
    needs: tuple[str, ...]
    added: str
    candidate: str

    @property
    def file(self) -> str:
        return f"func_{self.name}.py"


_FORWARD_ADDED = """

{constants}

def task_inputs():
    return get_inputs({inputs})


def task_constructor():
    return [dict({constructor})]


import inspect


class TaskModel(Model):
    def __init__(self, arguments):
        super().__init__(**arguments)

    def forward(self, *inputs, **options):
        # The format compares a scalar with a tensor of one element.
        result = super().forward(*inputs, **options)
        return result.reshape(1) if result.dim() == 0 else result

    forward.__signature__ = inspect.signature(Model.forward)
"""
_FORWARD_CANDIDATE = """

from opwright.judged.stated.solutions import Solution

_kernel = Solution({folder!r}, {entry!r}, inputs=[], outputs={{}}, flags={flags!r})


class Candidate(TaskModel):
    def forward(self, *inputs):
        return super().forward(*inputs, fn=_kernel)
"""
_BACKWARD_ADDED = """

from opwright.judged.stated.gradient_module import GradientModule, with_gradient

{constants}

def task_inputs():
    return with_gradient(Model(**dict({constructor})), get_inputs({inputs}))


def task_constructor():
    return [dict({constructor})]


class TaskModel(GradientModule):
    def __init__(self, arguments):
        super().__init__(Model(**arguments))

    def forward(self, *arguments):
        return super().forward(*arguments)

    forward.__signature__ = GradientModule.signature_of(Model)
"""
_BACKWARD_CANDIDATE = """

from opwright.judged.stated.solutions import Solution

AutogradFunction.backward_fn = Solution({folder!r}, {entry!r}, inputs=[], outputs={{}}, flags={flags!r})


class Candidate(TaskModel):
    function = staticmethod(AutogradFunction.apply)
"""
FORWARD = Direction("forward", ("forward_fn", "get_inputs", "Model"), _FORWARD_ADDED, _FORWARD_CANDIDATE)
BACKWARD = Direction(
    "backward", ("AutogradFunction", "forward_fn", "get_inputs", "Model"), _BACKWARD_ADDED, _BACKWARD_CANDIDATE
)
