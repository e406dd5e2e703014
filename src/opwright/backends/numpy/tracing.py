"""Compiles a NumPy function as one on tensors with torch.compile, for ``op.numpy`` and ``ow.compile_numpy``.

Every NumPy call in the traced graph follows NumPy's dtype rules (``contract/numpy/rules.py``). Code that cannot be
traced is an error with function, file, line and cause, and with what to write instead.
"""

from __future__ import annotations

import itertools
import operator
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from opwright import tree
from opwright.backends.numpy import equivalents
from opwright.backends.numpy.placement import place_of_arrays, run_call
from opwright.contract.numpy.facts import NotLikeNumpyError
from opwright.contract.numpy.names import lacking, what_is_wrong, what_to_write
from opwright.contract.numpy.rules import DefaultFloatDtype
from opwright.errors import CompileError
from opwright.internals.compiler import can_compile_graphs, compile_graph, is_tracing_error
from opwright.internals.numpy_layer import OutsideWriteError, can_refuse_writes

__all__ = [
    "cause_of",
    "compile_whole",
    "explain_break",
    "generate",
    "on_tensors",
    "on_tensors_in_pieces",
    "refuse_lacking",
]  # fmt: skip

_numbers = itertools.count()
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def refuse_lacking(function: Callable[..., Any], who: str) -> None:
    """Refuse NumPy functions that cannot be compiled, before anything is compiled.

    Raises:
        CompileError: with the function, file and line, and what to write instead.
    """
    for name in lacking(function):
        if name.path in equivalents.HAS_EQUIVALENT:
            continue
        raise CompileError(
            f"{who}: {name}, used in {name.function} at {name.where}, {what_is_wrong(name.path)}",
            fix=what_to_write(name.path),
        )


def on_tensors(function: Callable[..., Any], name: str, compile_: Compile) -> Callable[..., Any]:
    """The function on tensors, compiled as one graph."""

    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree.map_tensors(lambda t: t.numpy(), (args, kwargs))
        return tree.map_only(np.ndarray, torch.as_tensor, function(*args, **kwargs))

    return compile_(_fresh(call, f"on_tensors_{name}"))


def on_tensors_in_pieces(function: Callable[..., Any], name: str, compile_: Compile) -> Callable[..., Any]:
    """The function on tensors, compiled as far as torch.compile can; between the pieces are NumPy arrays."""
    compiled = compile_(_fresh(function, name) if isinstance(function, types.FunctionType) else function)

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = tree.tensors((args, kwargs))
        device = tensors[0].device if tensors else None
        args, kwargs = tree.map_tensors(lambda t: t.numpy(force=not t.requires_grad), (args, kwargs))
        out = compiled(*args, **kwargs)
        return tree.map_only((np.ndarray, np.generic), lambda a: torch.as_tensor(a, device=device), out)

    return call


def _fresh(function: Any, name: str) -> Callable[..., Any]:
    """A copy with its own code object, under which torch.compile keeps compiled code, and its own name, under
    which it remembers dynamic sizes."""
    code = function.__code__.replace(co_name=re.sub(r"[^0-9A-Za-z_]", "_", f"{name}_{next(_numbers)}"))
    copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def compile_whole(
    function: Callable[..., Any],
    *,
    default_float_dtype: DefaultFloatDtype,
    fullgraph: bool = True,
    dynamic: bool | None = None,
    on_graph: Callable[[str], None] | None = None,
    code_of: Callable[[torch.fx.GraphModule, Any], Any] | None = None,
) -> Callable[..., Any]:
    """torch.compile of a function on tensors.

    Args:
        default_float_dtype: the dtype that NumPy's functions choose by default.
        fullgraph: refuse code that cannot be traced; otherwise it runs in Python.
        on_graph: called before a graph is compiled, with the cause of the graph break that ended it ("" if none).
        code_of: the backend that compiles a graph; Inductor by default.
    """
    if code_of is None and not (can_compile_graphs() and can_refuse_writes()):
        raise CompileError(
            f"torch {torch.__version__} does not compile NumPy code; `opwright doctor` lists what is missing",
            fix="use a torch between 2.11 and 2.15",
        )

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        if on_graph is not None:
            on_graph(_break_at_end(graph))
        return (code_of or generate)(_by_numpys_rules(graph, default_float_dtype), inputs)

    return torch.compile(function, fullgraph=fullgraph, dynamic=dynamic, backend=backend)


def generate(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """Compile a graph to C++ or Triton with Inductor."""
    return compile_graph(graph, inputs)


def _break_at_end(graph: torch.fx.GraphModule) -> str:
    found: Any = getattr(graph, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return ""
    frames = [f for f in found.user_stack if "/torch/" not in f.filename]
    return cause_of(str(found.reason)) + (f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else "")


class _ByNumpysRules:
    """One NumPy call in a graph, as NumPy does it; torch's own promotes, copies and writes in other ways."""

    def __init__(self, call: Any, default_float_dtype: DefaultFloatDtype) -> None:
        self._call = call
        self._default_float_dtype = default_float_dtype
        self._place = place_of_arrays()
        # The name is part of the key in torch.compile's caches.
        name = getattr(call, "__name__", "numpy")
        self.__name__ = f"{name}_{default_float_dtype}_{self._place}_rules{_RULES}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._call is operator.getitem and not isinstance(args[0], torch.Tensor):
            return args[0][args[1]]
        call = _Operator(self._call) if self._call is operator.getitem else self._call
        return run_call(call, self._place, self._default_float_dtype, *args, **kwargs)


class _Operator(NamedTuple):
    """An operator on arrays that torch traces as one on tensors: a row of an array that a loop runs through."""

    op: Any


_RULES = 2  # of ``contract/numpy``; torch's caches on disk must not return code made by others


def _by_numpys_rules(graph: torch.fx.GraphModule, default_float_dtype: DefaultFloatDtype) -> torch.fx.GraphModule:
    for node in graph.graph.nodes:
        if node.op == "call_function" and (_is_numpy(node.target) or node.target is operator.getitem):
            node.target = _ByNumpysRules(node.target, default_float_dtype)
    graph.recompile()
    return graph


def _is_numpy(target: Any) -> bool:
    return type(target).__name__.startswith("numpy_") or getattr(target, "__name__", "") == "numpy_attr_wrapper"


# -- errors -------------------------------------------------------------------------------------------------

_MOVE_OR_ALLOW = "move this line out of the compiled function, or pass allow_breaks=True to run it in Python"


def explain_break(error: Exception, who: str, default_fix: str = _MOVE_OR_ALLOW) -> CompileError | None:
    """A tracing error explained in terms of NumPy; None for another kind of error.

    Args:
        default_fix: the fix if there is no more specific one.
    """
    refusal = _refusal_in(error)
    if refusal is None and not is_tracing_error(error):
        return None
    text = str(error)
    place = _place(error, text)
    if refusal is not None:
        return CompileError(f"{who}: cannot be compiled{place}: {refusal.message}", log=text, fix=refusal.fix)
    cause = cause_of(text)
    return CompileError(
        f"{who}: cannot be compiled whole{place}: {cause}", log=text, fix=_fix(text, cause) or default_fix
    )


def _refusal_in(error: BaseException | None) -> NotLikeNumpyError | OutsideWriteError | None:
    """The refusal of a step that an error of the tracer was raised from."""
    while error is not None:
        if isinstance(error, NotLikeNumpyError | OutsideWriteError):
            return error
        error = error.__cause__ or error.__context__
    return None


def cause_of(text: str) -> str:
    """torch's explanation without the details for torch's developers."""
    title, _, rest = text.partition("\n")
    if title.startswith("generic_jump"):
        return "it branches on a value that is not known when code is compiled"
    explanation = re.search(r"Explanation: (.+)", rest)
    raised = re.search(r"raised exception (.+)", rest)
    if raised and "exception handler" in rest:
        return f"it raises {raised.group(1).strip()}"
    shown = explanation.group(1).strip() if explanation else title.strip()
    return re.sub(r"<function (\w+) at 0x\w+>", r"np.\1", shown).rstrip(".")


def _place(error: Exception, text: str) -> str:
    frames = [(f.filename, f.lineno, f.name) for f in getattr(error, "real_stack", None) or ()]
    frames = frames or [(f, int(n), name) for f, n, name in re.findall(r'File "(.+?)", line (\d+), in (\S+)', text)]
    ours = (Path(__file__), Path(equivalents.__file__))
    own = [f for f in frames if Path(f[0]) not in ours and "/torch/" not in f[0]]
    if not own:
        return ""
    file, line, name = own[-1]
    return f" (in {name} at {file}:{line})"


# Fixes by a pattern in torch's message; the first match counts.
_FIXES = (
    (r"numpy function.*unsupported|in torch\.\w*numpy", "write it with functions that docs/numpy.md lists as working"),
    (
        r"[Dd]ata-dependent (branching|jump|control)",
        "choose by np.where instead of `if` (both sides are computed), or let Numba compile it: "
        'compile_numpy(compiler="auto"), @op.numba',
    ),
    (r"two (different )?devices", "pass every array as an argument, or make it within the function"),
    (r"ndarray\.dtype", "take the dtype outside and pass it as an argument, or write it out (np.float32)"),
    (r"`print`|builtin operator 'print'|builtin print", "print outside of the compiled function"),
    (r"tolist|\.item\(|data-dependent|unbacked", "keep it an array: a Python number is not known when it is compiled"),
    (r"generator|yield", "return arrays instead of yielding them"),
)  # fmt: skip


def _fix(text: str, cause: str) -> str | None:
    named = re.search(r"\bnp\.([\w.]+)", cause)
    if named and "_numpy" in cause:
        return what_to_write(named.group(1))
    return next((fix for pattern, fix in _FIXES if re.search(pattern, text)), None)
