"""Custom operators that were written for MAX: a folder of Mojo sources, loaded and compiled by MAX itself.

A source registers its operator with ``@extensibility.register("name")``. MAX's own function takes the output first and
checks neither sizes nor layouts; both are checked here. MAX compiles for half a minute for each combination of dtypes
and shapes, or (``symbolic=True``) for each combination of dtypes.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends.base import Artifact, Backend, KernelSpec, Launch
from opwright.backends.build_tools import BuildTools
from opwright.backends.check_hooks import CheckHooks
from opwright.backends.mojo.call import Outputs, outputs_for
from opwright.backends.mojo.source import DTYPES, Declaration, literal, read_declaration, size_condition
from opwright.contract.contract import Contract
from opwright.contract.dtypes import short
from opwright.contract.fingerprint import digest
from opwright.contract.shapes.dims import FixedDim, NamedDim
from opwright.contract.signature import Kind, TensorType
from opwright.errors import CompileError, KernelError, KernelRefusedError, SignatureMismatchError
from opwright.machine import Machine
from opwright.results import Accepted, Probe, Refused

__all__ = ["MaxBackend"]

_INSTALL = "pip install 'opwright[max]'"
_NO_MAX = "MAX is not installed"
# The names of MAX's module for torch, newest first.
_MODULES = ("max.experimental.torch", "max.torch")


class _MaxHooks(CheckHooks):
    is_compiled_function = True


class MaxBackend(Backend):
    """A ``.mojo`` file in a folder that is a Mojo package; ``entry`` is the registered name. Options:

    - ``params``: compile-time parameters by name; each a number, a string, a dtype, or a function of the arguments.
    - ``symbolic``: compile once for all sizes, in a MAX graph with symbolic dims, instead of through
      ``CustomOpLibrary`` for each.
    """

    name = "max"
    allocates_itself = False
    not_packaged = "MAX runs it through opwright", "write it in C++ or Triton as well"
    check_hooks = _MaxHooks
    takes = frozenset({"file"})
    suffixes = (".mojo",)
    default_devices = ("cpu",)
    dtypes = frozenset(DTYPES)

    def available(self, machine: Machine) -> Probe:
        return Refused(_NO_MAX, _INSTALL) if machine.max is None else Accepted(f"MAX {machine.max}")

    def validate(self, spec: KernelSpec, contract: Contract) -> None:
        where = f"{contract.qualname}:{spec.name}: {_source(spec).name}"
        if not (_folder(spec) / "__init__.mojo").is_file():
            raise KernelError(
                f"{where} must be in a Mojo package, got a folder without __init__.mojo",
                fix="put an empty __init__.mojo beside it",
            )
        for argument in contract.signature.arguments:
            if argument.kind is not Kind.TENSOR or argument.optional:
                raise KernelError(
                    f"{where}: the arguments must be tensors for MAX, got {argument.name!r}", fix="use op.mojo"
                )
        for name, value in _params(spec).items():
            if not callable(value) and literal(value) is None:
                raise KernelError(f"{where}: params[{name!r}] must be a number, got {value!r}", fix="pass a number")
        if spec.options.get("symbolic"):
            _refuse_unnamed_dims(contract, where)
        _check_execute(_execute_of(_source(spec), spec.entry, where), spec, contract, where)

    def condition(self, spec: KernelSpec, contract: Contract) -> Callable[..., Probe] | None:
        return size_condition(_params(spec), contract)

    def compile(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> Artifact:
        usable = self.available(tools.machine)
        if isinstance(usable, Refused):
            raise KernelRefusedError(f"{contract.qualname}:{spec.name}: {usable.reason}", fix=usable.remedy)
        return Artifact(spec.entry, payload=tools)  # MAX compiles at the first call, for its dtypes

    def load(self, artifact: Artifact, spec: KernelSpec, contract: Contract) -> Launch:
        return _MaxCall(spec, contract, artifact.payload)


def _source(spec: KernelSpec) -> Path:
    assert isinstance(spec.source, Path)  # the backend takes files only
    return spec.source


def _folder(spec: KernelSpec) -> Path:
    return _source(spec).parent


def _params(spec: KernelSpec) -> Mapping[str, Any]:
    params: Mapping[str, Any] = spec.options.get("params", {})
    return params


def _refuse_unnamed_dims(contract: Contract, where: str) -> None:
    signature = contract.signature
    argument_dims = {str(d) for a in signature.arguments if a.tensor for d in a.tensor.dims}
    for tensor in [*(a.tensor for a in signature.arguments), *(r.tensor for r in signature.returns)]:
        for dim in tensor.dims if tensor else ():
            if not isinstance(dim, FixedDim) and not (isinstance(dim, NamedDim) and str(dim) in argument_dims):
                raise KernelError(
                    f"{where}: with symbolic=True, dims must have a name or a fixed size, got {dim}",
                    fix="leave symbolic out: then MAX compiles for each shape",
                )


def _execute_of(source: Path, entry: str, where: str) -> Declaration:
    """The ``execute`` of the struct that is registered under a name."""
    text = source.read_text()
    registered = re.findall(r'(?m)^@(?:extensibility|compiler)\.register\("(\w+)"', text)
    if entry not in registered:
        raise KernelError(
            f"{where} must register the operator {entry!r}, got {registered}", fix="name one of them with entry=..."
        )
    own = re.split(rf'(?m)^@(?:extensibility|compiler)\.register\("{entry}".*$', text)[1]
    found = read_declaration(re.sub(r"(?m)^ {4}", "", own), "execute")
    if found is None:
        raise KernelError(
            f"{where}: the struct of {entry!r} must have an execute, got none", fix="give it a static def execute"
        )
    return found


def _check_execute(execute: Declaration, spec: KernelSpec, contract: Contract, where: str) -> None:
    """Compare the arguments that MAX will pass with the declaration of ``execute``.

    Raises:
        KernelError: a compile-time parameter is unknown or missing.
        SignatureMismatchError: its tensors are not the operator's outputs and arguments.
    """
    own = [p for p in execute.parameters if p != "target"]
    for name in _params(spec):
        if name not in own:
            raise KernelError(
                f"{where}: params must be compile-time parameters of {spec.entry}, {own}, got {name!r}",
                fix="leave it out, or add it to the source",
            )
    for name in own:
        if name not in _params(spec) and name not in execute.optional:
            raise KernelError(
                f"{where}: params must have the compile-time parameter {name!r} of {spec.entry}, got "
                f"{list(_params(spec))}",
                fix=f"add params={{{name!r}: ...}}",
            )
    tensors = [a for a in execute.arguments if a not in ("ctx", "context", "_ctx")]
    signature = contract.signature
    expected = ["output" if len(signature.returns) == 1 else f"output{i}" for i in range(len(signature.returns))]
    expected += [a.name for a in signature.arguments]
    if len(tensors) != len(expected):
        left_out = len(tensors) == len(signature.arguments)
        raise SignatureMismatchError(
            f"{where}: {spec.entry} takes ({', '.join(tensors)}), but {contract.qualname} passes "
            f"({', '.join(expected)})" + ("; it seems that the output was left out" if left_out else ""),
            fix="outputs come first, as OutputTensor, then the operator's arguments, as InputTensor",
        )


class _MaxCall:
    """Calls a MAX operator as a functional one: allocates the outputs, makes inputs contiguous and detached."""

    def __init__(self, spec: KernelSpec, contract: Contract, tools: BuildTools) -> None:
        self.spec = spec
        self.contract = contract
        self.tools = tools
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._failed: dict[Any, CompileError] = {}
        self._outputs: dict[Any, Outputs] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        tensors = [a.detach().contiguous() for a in arguments]
        found = self._outputs_for(tensors)
        device = tensors[0].device
        outputs = [torch.empty(s, dtype=d, device=device) for s, d in zip(found.shapes, found.dtypes, strict=True)]
        if all(o.numel() == 0 for o in outputs):
            return self.contract.pack(outputs)  # nothing to compute, and MAX has no buffer without elements
        params = {n: v(*arguments) if callable(v) else v for n, v in _params(self.spec).items()}
        key = (*((t.dtype, t.device, None if self._symbolic else t.shape) for t in tensors), *params.items())
        compiled = self._compiled.get(key)
        if compiled is not None:
            compiled(*outputs, *tensors)
        else:
            self._compile_and_run(key, params, outputs, tensors)
        return self.contract.pack(outputs)

    def _outputs_for(self, tensors: Sequence[torch.Tensor]) -> Outputs:
        key = tuple((t.shape, t.dtype) for t in tensors)
        found = self._outputs.get(key)
        if found is None:
            if len(self._outputs) >= 1024:  # a bound, should sizes change with every call
                self._outputs.clear()
            found = self._outputs[key] = outputs_for(self.contract, tensors)
        return found

    @property
    def _symbolic(self) -> bool:
        return bool(self.spec.options.get("symbolic"))

    def _compile_and_run(
        self, key: Any, params: dict[str, Any], outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> None:
        """Run a first call, in which MAX compiles and writes its messages to stderr."""
        if key in self._failed:
            raise self._failed[key]
        of = f"{self.contract.qualname}:{self.spec.name}"
        sizes = "all sizes" if self._symbolic else " and ".join(str(list(t.shape)) for t in tensors)
        self.tools.notify(
            f"MAX compiles {of} for {short(tensors[0].dtype)} and {sizes}; this takes about half a minute"
        )
        with self._lock, _captured_stderr() as captured:
            try:
                compiled = self._make(params, outputs, tensors)
                compiled(*outputs, *tensors)
            except Exception as error:
                self._failed[key] = _compile_error(of, _source(self.spec), error, captured())
                raise self._failed[key] from error
        self._compiled[key] = compiled

    def _make(
        self, params: dict[str, Any], outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        if self._symbolic:
            return self._graph(params, outputs, tensors)
        operator = getattr(_library(_folder(self.spec)), self.spec.entry)
        specialised: Callable[..., Any] = operator[params] if params else operator
        return specialised

    def _graph(
        self, params: dict[str, Any], outputs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        """A MAX graph of this operator, with the dims' names of the contract."""
        from max.graph import DeviceRef, KernelLibrary, ops

        signature = self.contract.signature
        device = DeviceRef.GPU(tensors[0].device.index) if tensors[0].device.type == "cuda" else DeviceRef.CPU()
        input_types = [
            _graph_type(a.tensor, t.dtype, device) for a, t in zip(signature.arguments, tensors, strict=True)
        ]
        output_types = [_graph_type(r.tensor, o.dtype, device) for r, o in zip(signature.returns, outputs, strict=True)]
        library = KernelLibrary()
        library.load_paths([_folder(self.spec)])

        def body(*values: Any) -> Any:
            found = ops.custom(self.spec.entry, device=device, values=values, out_types=output_types, parameters=params)
            return found[0] if len(found) == 1 else tuple(found)

        # MAX takes the parameters' names from the function.
        _set_parameters(body, [a.name for a in signature.arguments])
        unique = digest(
            self.contract.qualname, self.spec.name, str(_source(self.spec)), str(tensors[0].dtype), repr(params)
        )
        graph: Callable[..., Any] = _torch_module().graph_op(
            body, name=f"opwright_{self.contract.name}_{unique}", kernel_library=library, input_types=input_types,
            output_types=output_types,
        )  # fmt: skip
        return graph


def _set_parameters(function: Any, names: Sequence[str]) -> None:
    import inspect

    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    function.__signature__ = inspect.Signature(parameters)


def _graph_type(tensor: TensorType | None, dtype: torch.dtype, device: Any) -> Any:
    from max.dtype import DType
    from max.graph import TensorType as GraphType

    assert tensor is not None  # validate() refuses other arguments
    dims = [d.size if isinstance(d, FixedDim) else str(d) for d in tensor.dims]
    return GraphType(getattr(DType, short(dtype)), dims, device=device)


@functools.cache
def _torch_module() -> Any:
    """MAX's module for torch, under its name in this version."""
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and not name.startswith(error.name):
                raise  # another package that MAX needs
    raise KernelRefusedError(f"MAX has neither {' nor '.join(_MODULES)}", fix=_INSTALL)


@functools.cache
def _library(folder: Path) -> Any:
    return _torch_module().CustomOpLibrary(folder)


@contextlib.contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """A block whose output on file descriptor 2 is captured: MAX's compiler writes its messages there."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def captured() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield captured
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _compile_error(of: str, source: Path, error: Exception, stderr: str) -> CompileError:
    """The compiler's messages with their places; without any, the exception's text."""
    log = f"{stderr}\n{error}"
    blocks = re.split(r"(?m)^(?=\S+\.mojo:\d+:\d+: (?:error|warning|note))", log)
    errors = [b for b in blocks if re.match(r"\S+\.mojo:\d+:\d+: error", b)]
    shown = "\n".join("\n".join(b.rstrip().splitlines()[:3]) for b in errors[:3]).replace(f"{source.parent}/", "")
    return CompileError(
        f"{of}: MAX does not compile {source.name}\n{shown or str(error).strip()[-1000:]}",
        log=log,
        fix="the whole output is in .log",
    )
