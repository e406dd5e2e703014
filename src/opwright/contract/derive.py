"""Derives parts of an operator from its reference: fake outputs, gradients, a vmap rule, FLOPs and bytes.

Every function here takes a contract and arguments in signature order and uses torch operations only;
``runtime/register`` registers the results with torch.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from opwright import tree
from opwright.contract.binding import bind
from opwright.contract.contract import Contract
from opwright.contract.output_types import stated_outputs
from opwright.contract.reference import run_traceable
from opwright.errors import ContractError
from opwright.internals.compiler import DispatchMode, fake_tensors, real_constants

__all__ = [
    "batch_rule",
    "differentiable",
    "differentiable_arguments",
    "fake_outputs",
    "flops",
    "functional_vjp",
    "least_bytes",
    "leaves",
    "vjp",
    "vjp_of_real",
    "work",
]


def fake_outputs(contract: Contract, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Empty outputs, of the shapes and dtypes that their annotations state; where these leave something open, of those
    that the reference has on the arguments (fake or meta tensors).

    Outputs are always contiguous, whatever the layout of the reference's result. Sizes that depend on data are new
    symbols, which torch has only while it calls an operator's fake.
    """
    signature = contract.signature
    if signature.returns_list:  # how many there are, only the reference says
        return tuple(output.new_empty(output.shape) for output in _traceable_on_fakes(contract, arguments))
    stated, device = stated_outputs(contract, arguments, _new_size(contract) if signature.data_dependent else None)
    complete = [(s.shape, s.dtype) for s in stated if s.shape is not None and s.dtype is not None]
    if len(complete) == len(stated):
        return tuple(torch.empty(shape, dtype=dtype, device=device) for shape, dtype in complete)
    outputs = _traceable_on_fakes(contract, arguments)[: len(signature.returns)]
    return tuple(
        output.new_empty(output.shape if s.shape is None else s.shape, dtype=s.dtype or output.dtype)
        for s, output in zip(stated, outputs, strict=True)
    )


def _traceable_on_fakes(contract: Contract, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """The reference's results on fake or meta tensors. If it refuses meta tensors, because tensors of its own are on
    the CPU, it runs on fakes of CPU tensors."""
    try:
        return contract.traceable(arguments)
    except RuntimeError:
        if not any(t.is_meta for t in tree.tensors(list(arguments))):
            raise
    with fake_tensors() as as_fake:
        fakes = tree.map_tensors(lambda t: as_fake(t).to("cpu"), list(arguments))
        results = [(tuple(t.shape), t.dtype) for t in contract.traceable(fakes)]
    return tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in results)


def _new_size(contract: Contract) -> Callable[[], Any]:
    """A function that gives a new symbol for a size."""
    try:
        return torch.library.get_ctx().new_dynamic_size
    except RuntimeError:
        size = min(contract.signature.data_dependent)
        raise ContractError(
            f"{contract.qualname}: the size {size!r} depends on data, and meta tensors have none",
            fix="call it on real tensors, or trace it with torch.compile or torch.export",
        ) from None


def differentiable(value: Any) -> bool:
    """Whether gradients can flow to a value. (torch has no arithmetic on floats of a byte, so none to those.)"""
    if not isinstance(value, torch.Tensor):
        return False
    return value.dtype.is_complex or (value.dtype.is_floating_point and value.dtype.itemsize > 1)


def differentiable_arguments(contract: Contract, arguments: Sequence[Any]) -> list[bool]:
    """For each tensor among the arguments, lists flattened, whether gradients flow to it."""
    none = contract.signature.without_gradient
    return [differentiable(t) and i not in none for i, a in enumerate(arguments) for t in tree.tensors([a])]


def leaves(contract: Contract, arguments: Sequence[Any]) -> list[Any]:
    """The arguments, with tensors to which gradients flow as leaves that require one."""
    remaining = iter(differentiable_arguments(contract, arguments))
    return tree.map_tensors(lambda t: t.detach().requires_grad_(next(remaining)), list(arguments))  # type: ignore[no-any-return]


@real_constants()
def vjp(
    contract: Contract,
    arguments: Sequence[Any],
    grad_outputs: Sequence[torch.Tensor | None],
    needs: Sequence[bool],
    *,
    create_graph: bool = False,
) -> list[torch.Tensor]:
    """``vjp_of_real``, also of fake tensors."""
    return vjp_of_real(contract, arguments, grad_outputs, needs, create_graph=create_graph)


def vjp_of_real(
    contract: Contract,
    arguments: Sequence[Any],
    grad_outputs: Sequence[torch.Tensor | None],
    needs: Sequence[bool],
    *,
    create_graph: bool = False,
) -> list[torch.Tensor]:
    """The vector-Jacobian product of the reference, recomputed from its arguments.

    Args:
        arguments: in signature order.
        grad_outputs: one for each output; None, or an empty tensor for a non-empty output, stands for zeros.
        needs: for each tensor in ``arguments`` (flattened, in order), whether its gradient is needed.
        create_graph: keep the result differentiable, for higher derivatives.

    Returns:
        The needed gradients in order, each contiguous with its argument's shape and dtype.
    """
    leaves = tree.leaves(list(arguments))
    with torch.enable_grad():
        inputs = _as_inputs(leaves, needs, create_graph)
        outputs = _run_to_differentiate(contract, tree.rebuild(list(arguments), inputs))
        wanted = [t for t, need in zip(_tensors(inputs), needs, strict=True) if need]
        pairs = [
            (output, grad)
            for output, grad in zip(contract.unpack(outputs), grad_outputs, strict=True)
            if not _is_absent(grad, output) and differentiable(output) and output.requires_grad
        ]
        found = _differentiate(contract, pairs, wanted, create_graph=create_graph) if pairs and wanted else ()
    return [
        torch.zeros_like(t, memory_format=torch.contiguous_format) if g is None else _contiguous(g)
        for t, g in itertools.zip_longest(wanted, found)
    ]


def _contiguous(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient in the layout of an operator's results; a sparse one, as of an embedding, stays sparse."""
    return gradient.contiguous() if gradient.layout is torch.strided else gradient


def _run_to_differentiate(contract: Contract, arguments: Sequence[Any]) -> Any:
    try:
        return run_traceable(contract.function, contract.signature, arguments)
    except RuntimeError as error:
        if "out=" not in str(error):
            raise
        raise ContractError(
            f"{contract.qualname}: the reference cannot be differentiated, because it writes with out=",
            fix="write with out.copy_(...) in the reference, or define the gradient with op.register_autograd",
        ) from error


def _differentiate(
    contract: Contract, pairs: Sequence[tuple[Any, Any]], wanted: Sequence[torch.Tensor], *, create_graph: bool
) -> tuple[torch.Tensor | None, ...]:
    outputs, grads = [output for output, _ in pairs], [grad for _, grad in pairs]
    try:
        return torch.autograd.grad(outputs, wanted, grads, allow_unused=True, create_graph=create_graph)
    except RuntimeError as error:
        if "inplace operation" not in str(error) and "modified inplace" not in str(error):
            raise
        raise ContractError(
            f"{contract.qualname}: the reference cannot be differentiated, because it overwrites a value that its "
            "gradient needs",
            fix="compute from a copy in the reference (x.clone()), or define the gradient with op.register_autograd",
        ) from error


@real_constants()
def functional_vjp(contract: Contract, grad_outputs: Sequence[torch.Tensor | None], *rest: Any) -> list[torch.Tensor]:
    """Like ``vjp``, through ``torch.func.vjp``, for calls within ``torch.func`` transforms.

    Args:
        rest: the arguments in signature order, then ``needs``.
    """
    *arguments, needs = rest
    leaves = tree.leaves(list(arguments))
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    wanted = [i for i, need in zip(tensors, needs, strict=True) if need]

    def of_wanted(*values: torch.Tensor) -> list[torch.Tensor]:
        filled = list(leaves)
        for i, value in zip(wanted, values, strict=True):
            filled[i] = value
        outputs = run_traceable(contract.function, contract.signature, tree.rebuild(list(arguments), filled))
        pairs = list(zip(contract.unpack(outputs), grad_outputs, strict=True))
        incoming[:] = [g for o, g in pairs if not _is_absent(g, o)]
        # Outputs without a gradient are left out; torch.func.vjp refuses integers.
        return [o for o, g in pairs if not _is_absent(g, o)]

    incoming: list[Any] = []
    pull = torch.func.vjp(of_wanted, *(leaves[i] for i in wanted))[1]
    return [g.contiguous() for g in pull(incoming)]


def _is_absent(grad: torch.Tensor | None, output: torch.Tensor) -> bool:
    """Whether a gradient is none, or stands for none: an empty vector. (An output may be one, whose gradient it is.)"""
    is_empty_vector = grad is not None and grad.dim() == 1 and grad.numel() == 0
    return grad is None or (is_empty_vector and (output.dim() != 1 or output.numel() != 0))


def _as_inputs(leaves: Sequence[Any], needs: Sequence[bool], keep_graph: bool) -> list[Any]:
    """The tensors to differentiate by: aliases in the caller's graph, or leaves of a new graph."""
    remaining = iter(needs)

    def prepare(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not next(remaining):
            return leaf if keep_graph else leaf.detach()
        if keep_graph and leaf.requires_grad:
            return leaf.view_as(leaf)
        return leaf.detach().requires_grad_()

    return [prepare(leaf) for leaf in leaves]


def _tensors(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def batch_rule(contract: Contract, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
    """The vmap rule: vmap of the reference. Returns the outputs and the dim of each that is the batch.

    Raises:
        ContractError: an output's size depends on data, so that it may differ within the batch.
    """
    if contract.signature.data_dependent:
        raise ContractError(
            f"{contract.qualname} has no vmap rule: the size {min(contract.signature.data_dependent)!r} depends on "
            "data, so that each call of a batch may have another one",
            fix="call it in a loop, or define the rule with op.register_vmap",
        )

    def positional(*values: Any) -> tuple[torch.Tensor, ...]:
        bind(contract, values)
        return contract.unpack(run_traceable(contract.function, contract.signature, values))

    outputs = torch.vmap(positional, in_dims=tuple(in_dims), out_dims=0)(*arguments)
    if contract.signature.returns_list:
        return contract.pack(outputs), [0] * len(outputs)
    return contract.pack(outputs), 0 if not contract.signature.returns_tuple else (0,) * len(outputs)


def flops(contract: Contract, arguments: Sequence[Any]) -> int:
    """Floating-point operations of the reference, counted on meta tensors, or on the arguments if it reads values.

    Matrix products and convolutions by torch's formulas (a multiply-add is 2), elementwise operations
    one for each output element, reductions one for each input element, data movement none.
    """
    return _work_by_shapes(contract, arguments)[0]


def work(contract: Contract, arguments: Sequence[Any]) -> tuple[int, int]:
    """FLOPs of the reference as ``flops`` counts them, and the number of terms in its longest sum or scan.

    On small arguments on a CPU, the reference runs: torch finds the shapes of results on meta tensors in Python.
    """
    if _is_quick_here(tree.tensors(list(arguments))):
        with contextlib.suppress(Exception):  # such as of what torch computes in another way on a CPU
            here = tree.map_tensors(torch.Tensor.detach, list(arguments))
            return _count(contract, here, _FlopCounter(refuses_cpu=True))
    return _work_by_shapes(contract, arguments)


def _work_by_shapes(contract: Contract, arguments: Sequence[Any]) -> tuple[int, int]:
    try:
        return _count(contract, tree.map_tensors(lambda t: t.to("meta"), list(arguments)), _FlopCounter())
    except Exception:  # a reference that reads values raises anything on meta tensors, and runs on its arguments
        return _count(contract, tree.map_tensors(torch.Tensor.detach, list(arguments)), _FlopCounter())


def _is_quick_here(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether torch computes with some tensors sooner than it finds the shapes of the results in Python."""
    return sum(t.numel() for t in tensors) <= 1 << 13 and all(t.device.type == "cpu" for t in tensors)


def _count(contract: Contract, arguments: Sequence[Any], counter: _FlopCounter) -> tuple[int, int]:
    with counter:
        run_traceable(contract.function, contract.signature, contract.with_copies(arguments))
    return counter.total, counter.longest


def least_bytes(contract: Contract, arguments: Sequence[Any]) -> int:
    """The minimum of bytes that a kernel moves: each argument read once, each returned output and each mutated argument
    written once.

    An expanded tensor counts with the bytes that it occupies.
    """
    if contract.signature.data_dependent:
        outputs = contract.reference(arguments)[: contract.signature.visible]
    else:
        on_meta = tree.map_tensors(lambda t: t.to("meta"), list(arguments))
        outputs = fake_outputs(contract, on_meta)[: contract.signature.visible]
    inputs = tree.tensors(list(arguments))
    return sum(map(_bytes_occupied, (*inputs, *outputs, *contract.signature.written(arguments))))


def _bytes_occupied(tensor: torch.Tensor) -> int:
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride != 0 else min(size, 1)
    return elements * tensor.element_size()


class _FlopCounter(DispatchMode):  # type: ignore[misc]
    """Adds up the work of every aten operation that passes.

    Args:
        refuses_cpu: raise at a function for CPUs alone, such as of attention, whose work has no formula.
    """

    def __init__(self, *, refuses_cpu: bool = False) -> None:
        super().__init__()
        self._refuses_cpu = refuses_cpu
        self.total = 0
        self.longest = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._refuses_cpu and ("_cpu" in func.__name__ or "mkldnn" in func.__name__):
            raise NotImplementedError(func.__name__)
        if func.overloadpacket not in flop_registry:
            # Without autograd, as in inference mode and within other modes, matmul arrives undecomposed.
            with self:
                parts = func.decompose(*args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        out = func(*args, **(kwargs or {}))
        self.total += self._work(func, args, kwargs or {}, out)
        return out

    def _work(self, func: Any, args: Any, kwargs: Any, out: Any) -> int:
        packet = func.overloadpacket
        name = packet.__name__ if func.namespace == "aten" else ""
        if packet in flop_registry:
            return int(flop_registry[packet](*args, **kwargs, out_val=out))
        results = tree.tensors(out)
        if not results or func.is_view or name in _MOVES_DATA:
            return 0
        if name in _SCANS and args[0].dim():
            self.longest = max(self.longest, args[0].shape[args[1]])
        if name.startswith(_FACTORISATIONS):  # errors grow with the matrix, not with its square root
            self.longest = max(self.longest, *(t.shape[-1] ** 2 for t in tree.tensors(args) if t.dim() > 1), 1)
        if torch.Tag.pointwise in func.tags:
            return results[0].numel()
        inputs = tree.tensors((args, kwargs))
        read = max((t.numel() for t in inputs), default=0)
        self.longest = max(self.longest, read // max(results[0].numel(), 1))
        return read if read > results[0].numel() else 0  # a reduction; other operations move data


# Names of aten operators whose outputs are as large as their inputs, and whose elements each sum up a whole dim,
# which is the second argument.
_SCANS = frozenset({"cumsum", "cumprod", "logcumsumexp", "_softmax", "_log_softmax"})
_FACTORISATIONS = ("linalg_", "_linalg", "cholesky", "lu_", "triangular_solve", "ormqr", "geqrf")
_MOVES_DATA = frozenset({"clone", "_to_copy", "copy_", "index", "where"})
