"""``@ow.op``, which makes an operator of a typed function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Never, Protocol, TypeVar, overload

import cloudpickle
import numpy as np
from typing_extensions import ParamSpec

from opwright.contract.definition.define import make_contract
from opwright.contract.shapes.search import refuse_conflict
from opwright.errors import ContractError
from opwright.runtime.languages import LIBRARY_NAMES
from opwright.runtime.op import Op
from opwright.runtime.serialization import reduce_for_cloudpickle

__all__ = ["op"]

# pickle sends an operator by module and name, which do not tell cloudpickle that its module is a script or a notebook.
cloudpickle.Pickler.dispatch_table[Op] = reduce_for_cloudpickle

P = ParamSpec("P")
R = TypeVar("R")
Arrays = np.ndarray[Any, Any] | tuple[np.ndarray[Any, Any], ...]
Autocast = Literal["lower", "float32", "promote"]


class Decorator(Protocol):
    """The type of ``ow.op(...)``. An operator with a reference in NumPy takes tensors as well as arrays, and returns
    the same kind, which the reference's annotations cannot express: for type checkers it takes anything."""

    @overload
    def __call__(self, reference: Callable[..., Arrays], /) -> Op: ...
    @overload
    def __call__(self, reference: Callable[P, R], /) -> Op[P, R]: ...


def op(
    qualname: str,
    *,
    where: Sequence[str] | str = (),
    random: bool | str = False,
    deterministic: bool = False,
    tf32: bool = False,
    autocast: Autocast | None = None,
    **unknown: Never,
) -> Decorator:
    """Define an operator by a typed function, its reference implementation.

    Args:
        qualname: ``"namespace::name"``, the name in torch.
        where: conditions that sizes and ``int`` arguments satisfy, such as ``"hq % hk == 0"``, ``"k <= n"`` or
            ``"d in (64, 128)"``. Other calls are refused, and test inputs are chosen among those that satisfy them.
        random: True if the same arguments give different results; the name of an ``int`` argument if that is the seed,
            and kernels may draw other numbers from it than the reference. Results are compared by their statistics, and
            no gradient is derived.
        deterministic: True if the same arguments (and the same seed) have to give the same bits in every call, forward
            and backward: checks call each kernel many times, also beside other work and in each configuration. By
            default, sums may be added up in another order in each call.
        tf32: True if kernels may round the operands of products of float32 matrices to TF32, as tensor cores do. Checks
            then allow for that.
        autocast: what it does with floating arguments under ``torch.autocast``: ``"lower"`` casts them to autocast's
            dtype (as for a matrix product), ``"float32"`` to float32, ``"promote"`` to the widest among them (float64
            stays). None leaves them unchanged.

    Returns:
        A decorator that makes an ``Op`` from the reference. It is called like the reference, is registered with torch
        as ``torch.ops.namespace.name``, and runs the reference until kernels are attached to it.

    The function's tensor arguments are annotated with jaxtyping shapes (``Float[Tensor, "*batch n"]``),
    on ``torch.Tensor`` or, for a reference written in NumPy, on ``np.ndarray``. Arguments that share an
    abstract dtype class (``Float``) share one dtype in a call.

    Raises:
        ContractError: something in the function cannot be expressed, or an argument is unknown; the message names it.
        NameClashError: the name is taken.

    >>> import torch
    >>> from jaxtyping import Float
    >>> from torch import Tensor
    >>> import opwright as ow
    >>> @ow.op("doc::scale")
    ... def scale(x: Float[Tensor, "*n"], a: float) -> Float[Tensor, "*n"]:
    ...     return a * x
    >>> scale(torch.ones(2), 3.0)
    tensor([3., 3.])
    >>> torch.ops.doc.scale(torch.ones(2), 3.0)
    tensor([3., 3.])
    >>> @scale.python(name="by_addition", when=lambda x, a: a == 2.0)
    ... def _(x, a):
    ...     return x + x
    >>> print(scale.explain(torch.ones(2), 2.0))
    doc::scale would run 'by_addition' (python)
     → by_addition      python     runs
       reference        torch      no: a kernel was found before it
    """
    if unknown:
        name = next(iter(unknown))
        raise ContractError(
            f"an option of ow.op must be where, random, deterministic, tf32 or autocast, got {name!r}",
            fix=LIBRARY_NAMES.get(name, "leave it out, or correct its name"),
        )
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    scope = {**caller.f_globals, **caller.f_locals} if caller is not None else {}

    def decorate(reference: Callable[..., Any], /) -> Any:
        contract = make_contract(
            qualname, reference, scope, autocast, where=where, random=random, deterministic=deterministic, tf32=tf32
        )
        refuse_conflict(qualname, contract.where)
        return Op(contract)

    return decorate
