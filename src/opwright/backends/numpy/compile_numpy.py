"""``ow.compile_numpy``: a NumPy function at the speed of C++ or CUDA, and never other than NumPy."""

from __future__ import annotations

import contextvars
import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args, overload

import torch

from opwright import tree
from opwright.backends.build_tools import build_tools
from opwright.backends.numba_jit.jit import has_numba
from opwright.backends.numpy import tracing
from opwright.backends.numpy.choice import NUMPY, Choices, Form, MeasuredWays, QuickWay, form_of, quick_key, shown
from opwright.backends.numpy.effects import unknown_effect
from opwright.backends.numpy.finishing import Finishing, finish
from opwright.backends.numpy.numba_compiled import NumbaCompiled, Stopped
from opwright.backends.numpy.state import Copies, State, refuse_subclasses
from opwright.backends.numpy.statements import first_difference
from opwright.backends.numpy.torch_compiled import Compilation, TorchCompiled
from opwright.backends.numpy.verification import (
    Both,
    Call,
    after_failure,
    run_all,
    run_numpy_too,
    runs_in_numpy,
    times_of,
)
from opwright.contract.numpy.rules import DefaultFloatDtype, check_default_float_dtype
from opwright.errors import ArgumentError, CompileError, ContractError

__all__ = ["Compilation", "CompiledNumpy", "compile_numpy"]

Verify = Literal["first", "always", "never"]
Mode = Literal["auto", "compiled"]
Compiler = Literal["torch", "numba", "auto"]


@overload
def compile_numpy(function: Callable[..., Any], /) -> CompiledNumpy: ...
@overload
def compile_numpy(
    *,
    device: str | torch.device | None = None,
    default_float_dtype: DefaultFloatDtype = "float64",
    fullgraph: bool = True,
    allow_breaks: bool = False,
    dynamic: bool | None = None,
    verify: Verify = "first",
    mode: Mode = "auto",
    compiler: Compiler = "torch",
) -> Callable[[Callable[..., Any]], CompiledNumpy]: ...
def compile_numpy(
    function: Callable[..., Any] | None = None,
    /,
    *,
    device: str | torch.device | None = None,
    default_float_dtype: DefaultFloatDtype = "float64",
    fullgraph: bool = True,
    allow_breaks: bool = False,
    dynamic: bool | None = None,
    verify: Verify = "first",
    mode: Mode = "auto",
    compiler: Compiler = "torch",
) -> Any:
    """Compile a NumPy function to parallel C++ on a CPU and to Triton on a GPU; a decorator.

    Arrays give arrays, and tensors give tensors on their device, without copies, except of arrays to and
    from a GPU. Autograd works for tensors that require gradients. The first call of each compiled form also runs in
    NumPy: results, effects and memory are compared, and NumPy's result is returned.

    Args:
        device: where arrays are computed; the active ``torch.device(...)`` context, else the CPU. Tensors stay where
            they are.
        default_float_dtype: the dtype that NumPy's functions choose by default: "float64" as in NumPy, or "float32".
        fullgraph: raise an error for code that cannot be compiled; the same as ``not allow_breaks``.
        allow_breaks: run such code in Python, with one warning.
        dynamic: True: any size from the first compilation on; False: compile for each size; None: the first
            sizes are constants, and those that change become symbols.
        verify: compare with NumPy at the "first" call of each compiled form, "always", or "never".
        mode: "auto": calls on arrays go to NumPy where it was faster, which the first call of each size measures;
            "compiled": they never do, unless compiled code has stopped at an integer that does not fit into its dtype.
        compiler: "torch" (torch.compile), "numba", which suits loops and takes arrays only, or "auto": both, of which
            the faster one is used (torch.compile alone where Numba is not installed).

    Raises:
        CompileError: the function uses something of NumPy that cannot be compiled, or gives something else when it is;
            the arguments are then as NumPy leaves them, and ``error.result`` is NumPy's result.
    """

    def decorate(function: Callable[..., Any]) -> CompiledNumpy:
        whole = fullgraph and not allow_breaks
        return CompiledNumpy(function, device, default_float_dtype, whole, dynamic, verify, mode, compiler)

    return decorate if function is None else decorate(function)


class CompiledNumpy:
    """A NumPy function that is compiled when it is called.

    ``compilations`` lists each compilation, ``recompiles`` counts those after the first, ``choices`` has the times of
    both ways, ``refused`` has why a compiler could not be used, and ``explain()`` describes them.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        device: str | torch.device | None,
        default_float_dtype: DefaultFloatDtype,
        fullgraph: bool,
        dynamic: bool | None,
        verify: Verify,
        mode: Mode,
        compiler: Compiler = "torch",
    ) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        check_default_float_dtype(default_float_dtype, self._name)
        for name, value, kind in (("verify", verify, Verify), ("mode", mode, Mode), ("compiler", compiler, Compiler)):
            if value not in get_args(kind):
                choices = ", ".join(f'"{choice}"' for choice in get_args(kind))
                raise ContractError(f"{self._name}: {name} must be one of {choices}, got {value!r}", fix="choose one")
        if fullgraph and compiler == "torch":
            tracing.refuse_lacking(function, self._name)
        functools.update_wrapper(self, function)
        self._function = function
        self._default_float_dtype = default_float_dtype
        self._fullgraph = fullgraph
        self._verify = verify
        self._mode = mode if default_float_dtype == "float64" else "compiled"  # NumPy itself has no other default
        self._ways: dict[str, TorchCompiled | NumbaCompiled] = {}
        if compiler != "numba":
            chosen = torch.device(device) if device is not None else None
            # In pieces, Python runs some of it: only what is known to have no effects outside of arrays.
            self._is_whole = fullgraph or unknown_effect(function) != ""
            options = (chosen, default_float_dtype, self._is_whole, dynamic)
            self._ways["torch.compile"] = TorchCompiled(function, self._name, *options, self._about_to_compile)
        if compiler == "numba" or (compiler == "auto" and has_numba()):
            self._ways["numba"] = NumbaCompiled(function, self._name, self._about_to_compile_whole)
        self._choices = Choices()
        self._finishing: dict[Any, Finishing | None] = {}
        # Kinds of calls of which several forms are compiled, whose results are finished in different ways.
        self._varying: set[Any] = set()
        self.refused: dict[str, str] = {}
        self._only_numpy = ""

    # -- what a user sees ------------------------------------------------------------------------------------------

    @property
    def compilations(self) -> list[Compilation]:
        """Each compilation."""
        return [each for way in self._ways.values() for each in way.compilations]

    @property
    def recompiles(self) -> int:
        """The number of compilations after the first."""
        return max(len(self.compilations) - 1, 0)

    @property
    def choices(self) -> list[MeasuredWays]:
        """The times of NumPy and of compiled code, for each size that was measured."""
        return self._choices.made

    def explain(self) -> str:
        """The compilations as text: for which arguments, why each was necessary, how long it took, and which of both
        ways is faster."""
        if self._only_numpy:
            return f"{self._name}: nothing was compiled, calls run in NumPy: {self._only_numpy}"
        if not self.compilations:
            return f"{self._name}: not compiled yet; the first call does it"
        count = f"{len(self.compilations)} compilation{'s' * (len(self.compilations) > 1)}"
        lines = [f"  {c.seconds:6.1f} s  ({c.arguments})  {c.reason}" for c in self.compilations]
        refused = [f"  not by {way}: {why}" for way, why in self.refused.items()]
        return "\n".join([f"{self._name}: {count}", *lines, *refused, *(f"  {choice}" for choice in self.choices)])

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<compiled NumPy function {self._name}, {len(self.compilations)} compilations>"

    # -- calls -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or runs_in_numpy.get():
            return self._function(*args, **kwargs)  # part of an outer graph, or of its comparison with NumPy
        key = None if kwargs else quick_key(args)
        if key is not None and (quick := self._choices.quick_way(key)) is not None:
            if quick.way is NUMPY:
                return self._function(*args)
            result = self._run_quickly(key, quick, args)
            if result is not NotImplemented:
                return result
        if self._only_numpy:
            return self._function(*args, **kwargs)
        leaves = tree.leaves((args, kwargs))
        refuse_subclasses(leaves, self._name)
        form, on_arrays = form_of((args, kwargs), leaves)
        way = self._choices.way(form)
        if way is NUMPY:
            self._choices.remember(key, NUMPY)
            return self._function(*args, **kwargs)
        call = Call(self._function, args, kwargs, single=self._default_float_dtype == "float32")
        measure = on_arrays and way is None and (self._mode == "auto" or len(self._ways) > 1)
        way = way or next(iter(self._ways))
        is_new = self._verify != "never" and not self._is_verified(form, way)
        if not call.has_values:
            return call.run(self._ways[way])
        if measure or is_new or self._verify == "always":
            return self._first_call(call, form, measure)
        result = self._run(call, form, way)
        if key is not None and (self._verify == "never" or self._is_verified(form, way)):
            self._choices.remember(key, way, self._finishing.get((form.kind, way)))
            self._ways[way].remember(key, args)
        return result

    def _is_verified(self, form: Form, way: str) -> bool:
        """Whether what is compiled for such calls has given NumPy's results, and how these are finished is known."""
        return (form.kind, way) in self._finishing and (form.kind, way) not in self._varying

    def _run_quickly(self, key: Any, quick: QuickWay, args: Any) -> Any:
        """Run what an earlier call with the same types, dtypes and shapes has run; NotImplemented if it cannot."""
        way = quick.way
        saved = self._saved(way, args, {}, are_plain=True)
        token = _running.set(_Arguments(args) if self._verify != "never" else None)
        try:
            result = self._ways[way].quickly(key, args)
            call = _running.get()
        except ArgumentError:
            raise
        except Stopped as stopped:
            return self._stopped(stopped, way, Call(self._function, args, {}, single=False), saved)
        except Exception as error:
            call = Call(self._function, args, {}, single=self._default_float_dtype == "float32")
            return self._or_numpys(call, functools.partial(after_failure, call, error))
        finally:
            _running.reset(token)
        if isinstance(call, Call) and call.before is not None:  # something was compiled
            return self._or_numpys(call, functools.partial(self._verified, call, result, way))
        return result if result is NotImplemented else finish(quick.finishing, result, args, {})

    def _run(self, call: Call, form: Form, way: str) -> Any:
        """Run compiled code; if something is compiled in the meantime, NumPy runs besides."""
        saved = self._saved(way, call.args, call.keywords)
        token = _running.set(call if self._verify != "never" else None)
        try:
            came = call.run(self._ways[way])
        except Stopped as stopped:
            return self._stopped(stopped, way, call, saved)
        except ArgumentError:
            call.undo()
            raise
        except Exception as error:
            return self._or_numpys(call, functools.partial(after_failure, call, error))
        finally:
            _running.reset(token)
        if call.before is None:
            return finish(self._finishing.get((form.kind, way)), came, call.args, call.keywords)
        return self._or_numpys(call, functools.partial(self._verified, call, came, way))

    def _verified(self, call: Call, came: Any, way: str) -> Any:
        """NumPy's result of a call for which something was compiled, if it is the same. If not, or if NumPy raises an
        exception, such calls are compared until they are."""
        arguments = (call.args, call.keywords)
        kind = form_of(arguments, tree.leaves(arguments))[0].kind
        try:
            both = self._compared(call, run_numpy_too(call, came))
        except BaseException:
            self._finishing.pop((kind, way), None)
            self._choices.forget_quick_ways()
            raise
        self._learn(kind, way, both.finishing)
        return both.result

    def _learn(self, kind: Any, way: str, finishing: Finishing | None) -> None:
        """Note how results are finished. What differs among the forms compiled for one kind is always compared."""
        if finishing is not None and not finishing.is_certain:
            self._finishing.pop((kind, way), None)  # the next call is compared, too
            return
        if self._finishing.get((kind, way), finishing) != finishing:
            self._varying.add((kind, way))
            self._choices.forget_quick_ways()
        self._finishing[kind, way] = finishing

    def _saved(self, way: str, args: Any, keywords: dict[str, Any], are_plain: bool = False) -> State | Copies | None:
        """What compiled code may have written when it stops. Numba writes to arguments only."""
        if not self._ways[way].may_stop:
            return None
        return Copies(args) if are_plain else State(args, keywords)

    def _stopped(self, stopped: Stopped, way: str, call: Call, saved: State | Copies | None) -> Any:
        """NumPy's result of a call that compiled code could not end; it runs calls of this size from now on."""
        self.refused[way] = stopped.message.removeprefix(f"{self._name}: ")
        if saved is not None:
            saved.restore()
        else:
            call.undo()
        arguments = (call.args, call.keywords)
        self._choices.send_to_numpy(form_of(arguments, tree.leaves(arguments))[0])
        return call.in_numpy()

    def _first_call(self, call: Call, form: Form, measure: bool) -> Any:
        """Run every way, compare each with NumPy, and measure them."""
        both, refusal = None, None
        right: dict[str, Callable[..., Any]] = {}
        for name, came in run_all(call, dict(self._ways)).items():
            try:
                if isinstance(came, Exception):
                    raise came
                both = self._compared(call, came)
                right[name] = self._ways[name]
                self._learn(form.kind, name, both.finishing)
            except CompileError as error:
                refusal = refusal or error
                self.refused[name] = error.message.removeprefix(f"{self._name}: ")
        if both is None:
            assert refusal is not None  # there is at least one way, and it was refused
            if isinstance(refusal, Stopped):
                self._choices.send_to_numpy(form)
                return refusal.result
            return self._or_numpys(call, functools.partial(_raise, refusal))
        if measure and not self._only_numpy:
            arguments = ", ".join(f"{name}: {shown(value)}" for name, value in call.bound().items())
            times = times_of(call, {name: functools.partial(self._run_short, name) for name in right})
            if self._mode == "compiled":
                del times[NUMPY]
            choice = self._choices.choose(form, arguments, times)
            build_tools().notify(f"{self._name} {choice}")
        return both.result

    def _run_short(self, way: str, *args: Any, **kwargs: Any) -> Any:
        """Run compiled code as later calls do."""
        key = None if kwargs else quick_key(args)
        self._saved(way, args, kwargs, are_plain=key is not None)
        if key is not None:
            self._ways[way].remember(key, args)
            result = self._ways[way].quickly(key, args)
            if result is not NotImplemented:
                return result
        return self._ways[way](*args, **kwargs)

    def _compared(self, call: Call, both: Both) -> Both:
        """What both ways gave, if it is the same."""
        if both.difference and self._verify != "never":
            raise self._differs(call, both)
        return both

    def _differs(self, call: Call, both: Both) -> CompileError:
        after = State(call.save().targets())
        statement = first_difference(self._function, call.args, call.keywords, call.save(), self._default_float_dtype)
        after.restore()
        where = f"; values part after {statement}" if statement else ""
        error = CompileError(
            f"{self._name}: compiled code gives something else than NumPy: {both.difference}{where}",
            fix="write this statement differently, or pass allow_breaks=True, with which NumPy runs the function",
        )
        error.result = both.result
        return error

    def _or_numpys(self, call: Call, run: Callable[[], Any]) -> Any:
        """The result of ``run``; where it may run in pieces and is refused, NumPy's result, from now on."""
        try:
            return run()
        except CompileError as error:
            if self._fullgraph:
                raise
            self._only_numpy = error.message.removeprefix(f"{self._name}: ")
            message = f"{self._name}: nothing is compiled, NumPy runs it: {self._only_numpy}"
            warnings.warn(message, stacklevel=5)
            return error.result

    def _about_to_compile(self) -> None:
        """Note what a call may change before it runs what is compiled now; not of code that runs in pieces."""
        if self._is_whole:
            self._about_to_compile_whole()

    def _about_to_compile_whole(self) -> None:
        call = _running.get()
        if isinstance(call, _Arguments):
            call = Call(self._function, call.args, {}, single=self._default_float_dtype == "float32")
            _running.set(call)
        if call is not None:
            call.save()


class _Arguments(NamedTuple):
    """The arguments of a call that most probably compiles nothing."""

    args: tuple[Any, ...]


# The call that this thread runs compiled.
_running: contextvars.ContextVar[Call | _Arguments | None] = contextvars.ContextVar("opwright_call", default=None)


def _raise(error: Exception) -> Any:
    raise error
