"""Kernels in reverse Polish notation: ``a x * y +`` in a file."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.contract.contract import Contract
from opwright.errors import SignatureMismatchError
from opwright.machine import Machine
from opwright.results import Accepted, Probe

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class RpnBackend(Backend):
    name = "rpn"
    takes = frozenset({"file"})
    suffixes = (".rpn",)
    default_devices = ("cpu", "cuda")

    def available(self, machine: Machine) -> Probe:
        return Accepted("it needs nothing")

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        known = {argument.name for argument in contract.signature.arguments} | OPERATIONS.keys()
        if unknown := [word for word in spec.source.read_text().split() if word not in known]:
            raise SignatureMismatchError(
                f"{contract.qualname}: {spec.source.name} must use {', '.join(sorted(known))}, got {unknown[0]!r}",
                fix="correct the word",
            )

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        return Artifact(spec.entry, payload=spec.source.read_text().split())

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        names = [argument.name for argument in contract.signature.arguments]

        def launch(*arguments: Any) -> Any:
            values, stack = dict(zip(names, arguments, strict=True)), []
            for word in artifact.payload:
                if word in OPERATIONS:
                    right, left = stack.pop(), stack.pop()
                    stack.append(OPERATIONS[word](left, right))
                else:
                    stack.append(values[word])
            return stack[-1].contiguous()

        return launch
