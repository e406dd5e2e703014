"""The interface of a backend: four steps from a kernel's source to a callable.

*probe* reports whether a kernel can run here (a record, never an exception), *generate* makes the text
to compile, *compile* makes an artifact through the cache, *load* makes a callable from it.
A backend does not depend on registration, checking or timing.
"""

from __future__ import annotations

import abc
import ast
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from opwright.backends.build_tools import BuildTools
from opwright.contract.contract import Contract
from opwright.contract.dtypes import TakenDtypes
from opwright.errors import KernelError, SignatureMismatchError
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused
from opwright.target import Engine, Target

if TYPE_CHECKING:
    from opwright.backends.check_hooks import CheckHooks

__all__ = [
    "Artifact",
    "Backend",
    "KernelSpec",
    "Launch",
    "compare_parameters",
    "compare_with_contract",
    "free_kinds",
    "is_for_any_size",
    "launch_for_calls_like",
    "parameters_in_file",
]

# A loaded kernel: takes the arguments in signature order, returns what the operator returns.
Launch = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """One kernel as it was attached.

    Attributes:
        name: unique within the operator.
        backend: a key of ``LANGUAGES``.
        source: a Python callable, or the file that holds the kernel.
        entry: the function's name in that file.
        devices: torch device types that the kernel is written for.
        dtypes: floating dtypes (or, for an operator without floating arguments, all dtypes) that the
            kernel takes; None for all that the contract admits.
        argument_dtypes: the same of single arguments, by name.
        when: a predicate on the operator's arguments; False keeps the kernel out of a call.
        options: options that only the backend interprets.
    """

    name: str
    backend: str
    source: Callable[..., Any] | Path
    entry: str
    devices: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...] | None = None
    when: Callable[..., bool] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    argument_dtypes: Mapping[str, tuple[torch.dtype, ...]] = field(default_factory=dict)

    @property
    def taken_dtypes(self) -> TakenDtypes:
        """The dtypes that it takes: of single arguments, of all, or those of the contract."""
        return self.argument_dtypes or self.dtypes

    def is_built_with(self, other: KernelSpec) -> bool:
        """Whether both are in one file, and built in the same way: then they are compiled once."""
        mine, its = (self.source, self.backend, self.options), (other.source, other.backend, other.options)
        return isinstance(self.source, Path) and mine == its


@dataclass(frozen=True)
class Artifact:
    """The result of compiling. ``file`` is None if the artifact is the Python object ``payload`` itself."""

    entry: str
    file: Path | None = None
    payload: Any = None


class Backend(abc.ABC):
    """Base class of the backends. Subclasses define the class attributes and the four steps."""

    name: ClassVar[str]
    # What a user may attach: "callable", "file", or both.
    takes: ClassVar[frozenset[str]]
    suffixes: ClassVar[tuple[str, ...]] = ()
    default_devices: ClassVar[tuple[str, ...]]
    # The dtypes of kernels that are attached without dtypes=; None for all that the contract admits.
    dtypes: ClassVar[frozenset[torch.dtype] | None] = None

    # Whether its kernels may write arguments that the contract marks as mutated.
    mutates: ClassVar[bool] = False
    # Whether its kernels (or their launchers) allocate their outputs, whose sizes may then depend on data.
    allocates_itself: ClassVar[bool] = True
    # Why its kernels cannot be in a package, and what to write instead; empty if they can.
    not_packaged: ClassVar[tuple[str, str] | None] = None
    # What checks ask of the language, if there is more than ``CheckHooks`` has.
    check_hooks: ClassVar[type[CheckHooks] | None] = None

    @abc.abstractmethod
    def available(self, machine: Machine) -> Probe:
        """Whether the language can be used on this machine at all (what ``opwright doctor`` shows)."""

    def tools_for(self, spec: KernelSpec, machine: Machine) -> Probe:
        """Whether the tools that build this kernel are available. Default: the same for every kernel of a language."""
        return self.available(machine)

    def probe(self, spec: KernelSpec, target: Target, machine: Machine) -> Probe:
        """Whether this kernel can run on this target here. Never raises."""
        language = self.tools_for(spec, machine)
        if isinstance(language, Refused):
            return language
        if target.device not in spec.devices or target.engine is not Engine.NATIVE:
            return Refused(f"written for {' and '.join(spec.devices)}, not for {target}")
        if target.device == "cuda" and not machine.has_gpu:
            return Refused("no CUDA GPU is visible to torch", "run on a machine with an NVIDIA GPU and driver")
        return Accepted()

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        """Refuse a kernel whose parameters differ from the operator's, without running or importing it.

        Raises:
            SignatureMismatchError: names the operator, the kernel and the parameter.
            KernelError: another mistake that shows without running anything.
        """
        if isinstance(spec.source, Path):
            compare_parameters(parameters_in_file(spec, contract), spec, contract)
        else:
            try:
                parameters = inspect.signature(spec.source).parameters
            except ValueError:
                return  # a function in C, such as torch.sub, has no signature to inspect
            compare_parameters(list(parameters.values()), spec, contract)

    def generate(self, spec: KernelSpec, contract: Contract) -> str:
        """The text to compile; for a Python kernel, its own source."""
        if isinstance(spec.source, Path):
            return spec.source.read_text()
        try:
            return inspect.getsource(spec.source)
        except (OSError, TypeError):
            return f"# the source of {spec.source!r} is not available\n"

    def files(self, spec: KernelSpec) -> Iterator[Path]:
        """The files that a kernel is built from, as far as its source names them."""
        if isinstance(spec.source, Path):
            yield spec.source.absolute()

    @abc.abstractmethod
    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        """Make the artifact, or take it from the cache.

        Raises:
            CompileError: with the compiler's message, file and line.
        """

    @abc.abstractmethod
    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        """Make the artifact callable."""

    def prebuild(
        self,
        spec: KernelSpec,
        contract: Contract,
        tools: BuildTools,
        archs: Sequence[str],
        calls: Sequence[Sequence[Any]],
    ) -> list[Path]:
        """Compile a GPU kernel for some architectures and calls, and write the binaries beside its source.

        Args:
            calls: arguments of calls, on any device; their dtypes, shapes and numbers select the specialisations.

        Raises:
            KernelError: the language, or this kernel, has no such binaries.
        """
        raise KernelError(f"{contract.qualname}:{spec.name} has no folder for binaries", fix="choose another kernel")

    def condition(self, spec: KernelSpec, contract: Contract) -> Callable[..., Probe] | None:
        """A condition on a call's arguments besides the user's ``when``: Accepted, or Refused with the reason."""
        return None

    def compile_together(
        self, spec: KernelSpec, contract: Contract, others: Sequence[tuple[KernelSpec, Contract]], tools: BuildTools
    ) -> Artifact:
        """Like ``compile``, where other kernels are in the same source. Default: each is compiled by itself."""
        return self.compile(spec, contract, tools)

    def dtypes_here(self, spec: KernelSpec, device: str, machine: Machine) -> Collection[torch.dtype] | None:
        """Dtypes in which a kernel can run on a machine; None if all."""
        return spec.dtypes if spec.dtypes is not None else self.dtypes

    def traceable(self, spec: KernelSpec, contract: Contract, launch: Launch) -> Launch | None:
        """A form of the kernel that torch.compile may trace into; None keeps it one opaque operator."""
        return None


def parameters_in_file(spec: KernelSpec, contract: Contract) -> list[inspect.Parameter]:
    """The parameters of the Python function ``spec.entry`` in a file, read without importing it."""
    assert isinstance(spec.source, Path)  # the caller asks only for files
    try:
        tree = ast.parse(spec.source.read_text(), str(spec.source))
    except SyntaxError as error:
        raise KernelError(f"{contract.qualname}: {spec.source}:{error.lineno}: {error.msg}") from None
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == spec.entry]
    if not found:
        functions = sorted(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
        raise KernelError(
            f"{contract.qualname}: {spec.source} must define the function {spec.entry!r}, got {functions}",
            fix="name one of them with entry=...",
        )
    arguments = found[-1].args
    positional = [*arguments.posonlyargs, *arguments.args]
    parameters = [inspect.Parameter(a.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD) for a in positional]
    if arguments.vararg:
        parameters.append(inspect.Parameter(arguments.vararg.arg, inspect.Parameter.VAR_POSITIONAL))
    parameters += [inspect.Parameter(a.arg, inspect.Parameter.KEYWORD_ONLY) for a in arguments.kwonlyargs]
    if arguments.kwarg:
        parameters.append(inspect.Parameter(arguments.kwarg.arg, inspect.Parameter.VAR_KEYWORD))
    return parameters


def compare_parameters(parameters: list[inspect.Parameter], spec: KernelSpec, contract: Contract) -> None:
    """Raise SignatureMismatchError unless a Python kernel's parameters are the operator's, in order."""
    compare_with_contract(parameters, contract, f"the {spec.backend} kernel {spec.name!r}", spec.entry)


def compare_with_contract(parameters: list[inspect.Parameter], contract: Contract, what: str, entry: str) -> None:
    """Like ``compare_parameters``, for any function of an operator's arguments; ``what`` names it in the error."""
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p.name for p in parameters if p.kind in by_position]
    keyword = {p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return  # (*args) accepts any arguments
    expected = [a.name for a in contract.signature.positional]
    expected_keyword = {a.name for a in contract.signature.keyword_only}
    if positional != expected or keyword != expected_keyword:
        came = ", ".join(positional + (["*", *sorted(keyword)] if keyword else []))
        wanted = ", ".join(expected + (["*", *sorted(expected_keyword)] if expected_keyword else []))
        raise SignatureMismatchError(
            f"{contract.qualname}: {what} must take ({wanted}), got ({came})",
            fix=f"write it as def {entry}({wanted})",
        )


def launch_for_calls_like(launch: Launch, arguments: Sequence[Any]) -> Launch:
    """A loaded kernel specialised to calls like the last one: ``launch`` itself, if it has no such form.

    Two calls are alike if their tensors have the same dtypes, devices, sizes and strides, and their other arguments
    are equal, but for numbers on which the contract has no condition; addresses may differ. A kernel offers its
    specialised form in a method ``for_calls_like``, which must not compile anything: the call may have run another
    kernel.
    """
    specialise = getattr(launch, "for_calls_like", None)
    specialised: Launch = launch if specialise is None else specialise(arguments)
    return specialised


def is_for_any_size(launch: Launch) -> bool:
    """Whether the specialised form of a loaded kernel is for calls of any sizes (``for_any_size``)."""
    return bool(getattr(launch, "for_any_size", not hasattr(launch, "for_calls_like")))


def free_kinds(launch: Launch) -> tuple[type, ...]:
    """The types of numbers in which calls of the specialised form may differ (``free_kinds``)."""
    kinds: tuple[type, ...] = getattr(launch, "free_kinds", (int, float))
    return kinds
