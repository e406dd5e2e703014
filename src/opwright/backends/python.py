"""Kernels that are any Python callable: a library's function, eager torch code, a launcher."""

from __future__ import annotations

from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.contract.contract import Contract
from opwright.machine import Machine
from opwright.results import Accepted, Probe

__all__ = ["PythonBackend"]


class PythonBackend(Backend):
    """Calls the function as it is. torch.compile sees one opaque operator."""

    name = "python"
    mutates = True
    takes = frozenset({"callable"})
    default_devices = ("cpu", "cuda")

    def available(self, machine: Machine) -> Probe:
        return Accepted(f"Python {machine.python}")

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        return Artifact(spec.entry, payload=spec.source)

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        return contract.signature.flat(artifact.payload)
