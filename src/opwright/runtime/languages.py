"""The typed methods that attach kernels: ``op.triton(...)``, ``op.cpp(...)`` and others.

Subclasses define what attaching does: opwright's own operators make a record of the kernel (``attach``), those
of a shipped package use the prebuilt one.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, overload

import torch

from opwright.contract.dtypes import TakenDtypes
from opwright.contract.numpy.rules import DefaultFloatDtype
from opwright.errors import KernelError

if TYPE_CHECKING:
    from opwright.runtime.kernel import Kernel

__all__ = ["LIBRARY_NAMES", "REFERENCE", "KernelOptions", "Languages", "kernel_name"]

# The reference's name among kernels.
REFERENCE = "reference"
# torch.library's names for what is said in another way here, and that way.
LIBRARY_NAMES = {
    "mutates_args": 'mark what is written: x: Annotated[Float[Tensor, "n"], ow.mutated]',
    "schema": "annotate the function: the schema is derived from it",
    "device_types": "pass devices= where a kernel is attached",
    "register_kernel": 'attach a kernel: op.triton, op.cuda, op.cpp, …, or @op.python(devices=["cuda"])',
    "impl": 'attach a kernel: op.triton, op.cuda, op.cpp, …, or @op.python(devices=["cuda"])',
    "register_autocast": "pass autocast= to ow.op",
    "set_kernel_enabled": "op.restricted_to(kernel) is the operator with one kernel",
}
Function = TypeVar("Function", bound=Callable[..., Any])
# Blocks or threads of a launch: one to three numbers, or a function of the arguments that returns them.
Extent = int | Sequence[int] | Callable[..., int | Sequence[int]]
# A compile-time parameter: a constant, or a function of the arguments that returns one.
Parameter = int | float | str | torch.dtype | Callable[..., Any]


class KernelOptions(TypedDict, total=False):
    """The options of every language's method.

    Keys:
        name: the kernel's name, unique within the operator (default: the function's own name, else the
            language's).
        devices: the torch device types that it is written for.
        dtypes: the floating dtypes that it takes (for an operator without floating arguments, all dtypes); default: all
            that the contract admits. They concern arguments whose annotation leaves a choice, such as ``Float``. Or by
            argument: ``dtypes={"x": [torch.float16], "state": [torch.float32]}``.
        when: a predicate on the operator's arguments: if it is False, the kernel is not applicable, and another one
            runs.
    """

    name: str | None
    devices: Sequence[str] | None
    dtypes: TakenDtypes
    when: Callable[..., bool] | None


def _refuses_unknown_options(method: Function) -> Function:
    """Make an unknown option an error that lists the known ones."""
    known = [p.name for p in inspect.signature(method).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **options: Any) -> Any:
        if unknown := sorted(options.keys() - set(known)):
            raise KernelError(
                f"{self.contract.qualname}: an option of op.{method.__name__} must be one of {', '.join(known)}, "
                f"got {unknown[0]!r}",
                fix="leave it out, or correct its name",
            )
        return method(self, *args, **options)

    return checked  # type: ignore[return-value]  # the same signature


def _native(options: Sequence[str], abi: str) -> dict[str, Any]:
    """The options of a file in C++ or CUDA; the usual ABI is none, so that fingerprints do not contain it."""
    return {"options": options, "abi": abi if abi != "stable" else None}


def _mojo_options(abi: str, of_mojo: dict[str, Any], *, symbolic: bool) -> tuple[str, dict[str, Any]]:
    """The language, and its options."""
    if abi not in ("mojo", "max"):
        raise KernelError(f"op.mojo: abi must be 'mojo' or 'max', got {abi!r}", fix='write abi="mojo" or leave it out')
    if abi == "mojo":
        if symbolic:
            raise KernelError("op.mojo: symbolic=True must be used with abi='max'", fix='pass abi="max"')
        return "mojo", {**of_mojo, "alignment": 1 if of_mojo["alignment"] is None else of_mojo["alignment"]}
    if given := [name for name, value in of_mojo.items() if value is not None and value not in ((), [])]:
        raise KernelError(f"op.mojo: {given[0]} must be left out with abi='max'", fix="MAX chooses it")
    return "max", {"symbolic": symbolic}


class Languages:
    """One method for each language. Each attaches a kernel, which is built when it is first needed.

    A kernel takes the operator's arguments and returns its outputs, freshly allocated and contiguous. All methods
    raise KernelError for an option, a file or a function in it that does not exist, and SignatureMismatchError where
    the kernel's parameters are not the operator's.
    """

    if not TYPE_CHECKING:  # type checkers report missing names themselves

        def __getattr__(self, name: str) -> Any:
            if name in LIBRARY_NAMES:
                message = f"{type(self).__name__} has no attribute {name!r}; {LIBRARY_NAMES[name]}"
                raise AttributeError(message, name=name, obj=self)
            close = difflib.get_close_matches(name, [n for n in dir(type(self)) if not n.startswith("_")], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; the languages are {', '.join(_METHODS)}"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}", name=name, obj=self)

    def _attach(self, language: str, source: Any, options: Mapping[str, Any], **common: Any) -> Any:
        """Attach one kernel; without a source, a decorator that does."""
        raise NotImplementedError

    @overload
    def python(self, source: Function, /, **common: Unpack[KernelOptions]) -> Function: ...
    @overload
    def python(self, /, **common: Unpack[KernelOptions]) -> Callable[[Function], Function]: ...
    @_refuses_unknown_options
    def python(
        self,
        source: Any = None,
        /,
        *,
        name: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: TakenDtypes = None,
        when: Callable[..., bool] | None = None,
    ) -> Any:
        """Attach any Python callable; a decorator. torch.compile sees one opaque operator.

        Args:
            source: the function.
            name, devices, dtypes, when: see ``KernelOptions``; the devices are cpu and cuda by default.
        """
        return self._attach("python", source, {}, name=name, devices=devices, dtypes=dtypes, when=when)

    @overload
    def triton(self, source: Function, /, **common: Unpack[KernelOptions]) -> Function: ...
    @overload
    def triton(self, source: str | Path, /, *, entry: str | None = ..., **common: Unpack[KernelOptions]) -> Kernel: ...
    @overload
    def triton(self, /, **common: Unpack[KernelOptions]) -> Callable[[Function], Function]: ...
    @_refuses_unknown_options
    def triton(
        self,
        source: Any = None,
        /,
        *,
        name: str | None = None,
        entry: str | None = None,
        devices: Sequence[str] | None = None,
        dtypes: TakenDtypes = None,
        when: Callable[..., bool] | None = None,
    ) -> Any:
        """Attach a launcher around ``@triton.jit`` kernels; a decorator. torch.compile traces into it.

        Args:
            source: the launcher, or a file that holds it (looked for beside the operator's own file).
            entry: the launcher's name in that file (default: the operator's).
            name, devices, dtypes, when: see ``KernelOptions``; the device is cuda by default. Without a GPU,
                ``opwright check`` runs it in the simulator.
        """
        return self._attach("triton", source, {}, name=name, entry=entry, devices=devices, dtypes=dtypes, when=when)

    @overload
    def cuda(self, source: Function, /, **common: Unpack[KernelOptions]) -> Function: ...
    @overload
    def cuda(
        self,
        source: str | Path,
        /,
        *,
        entry: str | None = ...,
        options: Sequence[str] = ...,
        abi: str = ...,
        **common: Unpack[KernelOptions],
    ) -> Kernel: ...
    @overload
    def cuda(self, /, **common: Unpack[KernelOptions]) -> Callable[[Function], Function]: ...
    @_refuses_unknown_options
    def cuda(
        self,
        source: Any = None,
        /,
        *,
        name: str | None = None,
        entry: str | None = None,
        options: Sequence[str] = (),
        abi: str = "stable",
        devices: Sequence[str] | None = None,
        dtypes: TakenDtypes = None,
        when: Callable[..., bool] | None = None,
    ) -> Any:
        """Attach a CUDA C++ kernel; a decorator for launchers.

        Args:
            source: a Python launcher around ``ow.cuda_module`` kernels, or a ``.cu`` file with a host function on
                ``torch::stable::Tensor`` that has the operator's parameters, built with nvcc.
            entry: the host function's name in that file (default: the operator's).
            options: flags for nvcc, one string each.
            abi: "stable", or "aten" for host functions on ``at::Tensor``, as for ``op.cpp``.
            name, devices, dtypes, when: see ``KernelOptions``; the device is cuda by default. Without a GPU,
                ``opwright check`` runs launchers in the simulator.
        """
        return self._attach(
            "cuda", source, _native(options, abi), name=name, entry=entry, devices=devices, dtypes=dtypes, when=when
        )

    @_refuses_unknown_options
    def cpp(
        self,
        source: str | Path,
        /,
        *,
        name: str | None = None,
        entry: str | None = None,
        options: Sequence[str] = (),
        abi: str = "stable",
        devices: Sequence[str] | None = None,
        dtypes: TakenDtypes = None,
        when: Callable[..., bool] | None = None,
    ) -> Kernel:
        """Attach a C++ kernel: a file with a host function on ``torch::stable::Tensor`` that has the operator's
        parameters, built with the system's compiler in one to three seconds.

        Args:
            source: the file (looked for beside the operator's own file).
            entry: the function's name in it (default: the operator's).
            options: flags for the compiler, one string each.
            abi: "stable" for ``torch::stable::Tensor``, whose builds run on every later torch; "aten" for
                ``at::Tensor``, as most published extensions have it: a build holds for one torch, and takes longer.
                What the source registers itself (``TORCH_LIBRARY``, ``PYBIND11_MODULE``) is left out.
            name, devices, dtypes, when: see ``KernelOptions``; the device is cpu by default.
        """
        kernel: Kernel = self._attach(
            "cpp", source, _native(options, abi), name=name, entry=entry, devices=devices, dtypes=dtypes, when=when
        )
        return kernel

    @_refuses_unknown_options
    def mojo(
        self,
        source: str | Path,
        /,
        *,
        name: str | None = None,
        entry: str | None = None,
        params: Mapping[str, Parameter] | None = None,
        grid: Extent | None = None,
        block: Extent | None = None,
        alignment: int | None = None,
        prebuilt: str | None = None,
        options: Sequence[str] = (),
        abi: str = "mojo",
        symbolic: bool = False,
        devices: Sequence[str] | None = None,
        dtypes: TakenDtypes = None,
        when: Callable[..., bool] | None = None,
    ) -> Kernel:
        """Attach a Mojo function: compiled to a library for the CPU, or to PTX for a GPU (docs/mojo.md). Or, with
        ``abi="max"``, a custom operator that was written for MAX: a ``.mojo`` file in a folder that is a Mojo package.

        Args:
            source: the ``.mojo`` file (looked for beside the operator's own file).
            entry: the function's name in it, or the name that it registers with MAX (default: the operator's).
            params: its compile-time parameters by name; each a constant, or a function of the arguments.
            grid, block: blocks and threads of a GPU kernel; each a number, a tuple, or a function of the arguments.
            alignment: required alignment of the arguments' addresses in bytes (default: 1); other arguments are copied.
            prebuilt: a folder beside the source with PTX from ``opwright prebuild``.
            options: flags for the Mojo compiler, one string each.
            abi: "mojo" for a function, "max" for an operator of MAX. The latter takes none of ``grid``, ``block``,
                ``alignment``, ``prebuilt`` and ``options``.
            symbolic: with ``abi="max"``, compile once for all sizes, in a MAX graph with symbolic dims, instead of
                through ``CustomOpLibrary`` for each.
            name, devices, dtypes, when: see ``KernelOptions``; the device is cpu by default.
        """
        language, given = _mojo_options(
            abi,
            {"grid": grid, "block": block, "alignment": alignment, "prebuilt": prebuilt, "options": options},
            symbolic=symbolic,
        )
        kernel: Kernel = self._attach(
            language,
            source,
            {"params": params, **given},
            name=name,
            entry=entry,
            devices=devices,
            dtypes=dtypes,
            when=when,
        )
        return kernel

    @overload
    def numpy(
        self, source: Function, /, *, default_float_dtype: DefaultFloatDtype = ..., **common: Unpack[KernelOptions]
    ) -> Function: ...
    @overload
    def numpy(
        self, /, *, default_float_dtype: DefaultFloatDtype = ..., **common: Unpack[KernelOptions]
    ) -> Callable[[Function], Function]: ...
    @_refuses_unknown_options
    def numpy(
        self,
        source: Any = None,
        /,
        *,
        name: str | None = None,
        default_float_dtype: DefaultFloatDtype = "float64",
        devices: Sequence[str] | None = None,
        dtypes: TakenDtypes = None,
        when: Callable[..., bool] | None = None,
    ) -> Any:
        """Attach a function on NumPy arrays, which torch.compile turns into C++ or Triton; a decorator.

        Args:
            source: the function.
            default_float_dtype: the dtype that NumPy's functions choose by default: "float64" as in NumPy, or
                "float32".
            name, devices, dtypes, when: see ``KernelOptions``; the devices are cpu and cuda by default.
        """
        return self._attach(
            "numpy",
            source,
            {"default_float_dtype": default_float_dtype},
            name=name,
            devices=devices,
            dtypes=dtypes,
            when=when,
        )

    @overload
    def numba(
        self, source: Function, /, *, parallel: bool = ..., fastmath: bool = ..., **common: Unpack[KernelOptions]
    ) -> Function: ...
    @overload
    def numba(
        self, /, *, parallel: bool = ..., fastmath: bool = ..., **common: Unpack[KernelOptions]
    ) -> Callable[[Function], Function]: ...
    @_refuses_unknown_options
    def numba(
        self,
        source: Any = None,
        /,
        *,
        name: str | None = None,
        parallel: bool = False,
        fastmath: bool = False,
        devices: Sequence[str] | None = None,
        dtypes: TakenDtypes = None,
        when: Callable[..., bool] | None = None,
    ) -> Any:
        """Attach a function on NumPy arrays, which Numba compiles: loops over elements and time steps; a decorator.

        ``opwright check`` runs it with its indices checked. With ``devices=["cuda"]``, a launcher on tensors around
        functions that ``numba.cuda.jit`` decorates; ``kernel[grid, block](...)`` takes tensors for arrays, and runs on
        torch's current stream.

        Args:
            source: the function; one that ``numba.njit`` decorates keeps its own options.
            parallel: run ``numba.prange`` on as many threads as torch uses.
            fastmath: let Numba reorder sums.
            name, devices, dtypes, when: see ``KernelOptions``; the device is cpu by default.
        """
        return self._attach(
            "numba",
            source,
            {"parallel": parallel, "fastmath": fastmath},
            name=name,
            devices=devices,
            dtypes=dtypes,
            when=when,
        )


def kernel_name(language: str, source: Any, name: str | None) -> tuple[str, str]:
    """A kernel's name, and its default entry ("": the operator's name)."""
    own_name = getattr(source, "__name__", "_") if callable(source) else ""
    has_name = own_name not in ("", "_", "<lambda>")
    return name or (own_name if has_name else language), own_name


_METHODS = tuple(name for name in vars(Languages) if not name.startswith("_"))
