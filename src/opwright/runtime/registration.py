"""Making an operator known to torch. This is the only file that touches ``torch.library``.

Every part is registered once, as a trampoline that looks the current part up in the operator: an
override takes effect without a new registration. Redefining an operator destroys the old registration,
and tells torch.compile's caches, which otherwise serve a stale gradient or a stale shape: they do not
know what is behind an operator's name (seen on torch 2.11, 2.13 and 2.15).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from opwright.contract.contract import Contract
from opwright.contract.fingerprint import digest
from opwright.contract.signature import Kind
from opwright.errors import NameClashError
from opwright.runtime import backward as backward_rules
from opwright.runtime.autocast import KEYS, meets_autocast
from opwright.runtime.door import as_from_outside, conjugates_are_ignored, with_lazy_conjugates
from opwright.runtime.gradient import make_function, meets_autograd, meets_transforms

__all__ = ["Registrable", "Registration", "changed", "find", "register", "shard"]


class Registrable(Protocol):
    """What registration needs of an operator."""

    contract: Contract

    @property
    def fingerprint(self) -> str: ...
    def run(self, arguments: Sequence[Any]) -> Any: ...
    def fake(self, arguments: Sequence[Any]) -> Any: ...
    def traceable_kernel(self, arguments: Sequence[Any]) -> Callable[..., Any] | None: ...
    def setup_context(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None: ...
    def keep(self, ctx: Any, arguments: Sequence[Any], output: Any) -> None: ...
    def backward(self, ctx: Any, grads: Sequence[Any]) -> Sequence[Any]: ...
    def batch(self, info: Any, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]: ...
    def count_flops(self, arguments: Sequence[Any], output: Any) -> int: ...
    def retire(self) -> None: ...


@dataclass
class Registration:
    """One operator's presence in the dispatcher."""

    operator: Registrable
    library: torch.library.Library
    overload: Any
    # Whether torch.compile (or anything else that uses fake tensors) has looked at it.
    traced: bool = False

    def destroy(self) -> None:
        """Take it back, with everything that was compiled around it."""
        _forget_compiled(self)
        torch.utils.flop_counter.flop_registry.pop(self.overload.overloadpacket, None)
        for table in torch._decomp.global_decomposition_table.values():
            table.pop(self.overload, None)
        _forget_sharding(self.overload)
        self.library._destroy()
        self.operator.retire()


# The handles by which our own registrations can be undone; what is registered lives in the dispatcher.
_registered: dict[str, Registration] = {}
# Whose operators they are: a shipped package has a copy of this file, and its own part of torch.compile's keys.
_OURS = __name__.partition(".")[0]


def register(operator: Registrable) -> Any:
    """Register an operator, in place of an earlier one of the same name from the same file.

    Returns:
        The ``OpOverload`` that ``torch.ops`` will find.

    Raises:
        NameClashError: the name belongs to another library, or to another file of ours.
    """
    contract = operator.contract
    earlier = _registered.get(contract.qualname)
    if earlier is not None:
        _refuse_other_file(earlier.operator.contract, contract)
        earlier.destroy()
        del _registered[contract.qualname]
    else:
        _refuse_taken(contract)
    library = torch.library.Library(contract.namespace, "FRAGMENT")
    try:
        overload = _define(operator, library)
    except BaseException:
        library._destroy()
        raise
    _registered[contract.qualname] = Registration(operator, library, overload)
    return overload


def _refuse_other_file(earlier: Contract, new: Contract) -> None:
    if earlier.module != new.module and earlier.file != new.file:
        raise NameClashError(
            f"{new.qualname} is defined twice: in {earlier.file} and in {new.file}",
            fix="rename one of them, or import the one that is already there",
        )


def _refuse_taken(contract: Contract) -> None:
    for name in (contract.name, backward_rules.vjp_name(contract)):
        if hasattr(getattr(torch.ops, contract.namespace), name):
            needed = "" if name == contract.name else f" (the gradient of {contract.qualname} would be called so)"
            raise NameClashError(
                f"{contract.namespace}::{name} is already registered with torch{needed}",
                fix="choose another name, best in a namespace of your own",
            )


def find(qualname: str) -> Registrable | None:
    """The operator of ours that is registered under a name."""
    registration = _registered.get(qualname)
    return registration.operator if registration else None


def changed(operator: Registrable) -> None:
    """An operator's kernels or parts are others now: drop what this process compiled around it, if anything."""
    registration = _registered.get(operator.contract.qualname)
    if registration is not None and registration.operator is operator:
        _forget_compiled(registration)


def shard(contract: Contract, function: Callable[..., Any]) -> None:
    """Tell DTensor which placements an operator can take."""
    from torch.distributed.tensor.experimental import register_sharding

    overload = _registered[contract.qualname].overload
    register_sharding(overload)(function)


def _forget_sharding(overload: Any) -> None:
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import DTensor

        DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs.pop(overload, None)


def _forget_compiled(registration: Registration) -> None:
    if registration.traced and "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    registration.traced = False


def _stamp_compile_caches(operator: Registrable) -> None:
    """Keep torch.compile's caches on disk from serving what was compiled for other meanings.

    The digest of all our operators goes into ``torch.compiler.config.cache_key_tag``, which is part of every
    key of theirs. Tracing calls an operator's fake before any key is computed, so this is early enough, and
    late enough for all that a meaning reaches to be defined.
    """
    from torch.compiler import config

    _registered[operator.contract.qualname].traced = True
    parts = [f"{name}={r.operator.fingerprint}" for name, r in sorted(_registered.items())]
    others = [p for p in config.cache_key_tag.split() if not p.startswith(f"{_OURS}:")]
    config.cache_key_tag = " ".join([*others, f"{_OURS}:{digest(*parts)}"])


def _keep_kernels_in_inductor(overload: Any) -> None:
    """Tell Inductor to call the operator, although a decomposition of it exists for DTensor.

    It does so by itself, except where the environment has ``CI``: there it takes the pair for a mistake in
    torch's own tables and stops. A fall-back that is already there is not questioned.
    """
    if not os.environ.get("CI"):
        return
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    if overload not in lowering.lowerings:
        constraint = lowering.tag_to_layout_constraint(get_layout_constraint_tag(overload, with_default=True))
        lowering.make_fallback(overload, constraint, warn=False)


def _define(operator: Registrable, library: torch.library.Library) -> Any:
    contract = operator.contract
    signature, qualname = contract.signature, contract.qualname
    library.define(contract.name + contract.schema, tags=(torch.Tag.pt2_compliant_tag,))
    _define_vjp(operator, library)
    overload = getattr(getattr(torch.ops, contract.namespace), contract.name).default

    def in_order(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        # The dispatcher drops arguments that equal their defaults.
        missing = signature.positional[len(args) :]
        given = (*args, *(kwargs.get(a.name, a.default) for a in missing))
        return (*given, *(kwargs.get(a.name, a.default) for a in signature.keyword_only))

    def run(*args: Any, **kwargs: Any) -> Any:
        if not conjugates_are_ignored():
            return operator.run(in_order(args, kwargs))
        with with_lazy_conjugates():
            return operator.run(in_order(args, kwargs))

    def fake(*args: Any, **kwargs: Any) -> Any:
        _stamp_compile_caches(operator)
        _keep_kernels_in_inductor(overload)
        return operator.fake(in_order(args, kwargs))

    def setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        operator.setup_context(ctx, in_order(inputs, keyword_only_inputs or {}), output)

    def backward(ctx: Any, *grads: Any) -> Any:
        found = tuple(operator.backward(ctx, grads))
        # No gradient for a default that the dispatcher dropped: torch before 2.15 counts, if there is a list.
        return found[: len(ctx.needs_input_grad)]

    def batch(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        dims = (*in_dims, *(None,) * (len(signature.arguments) - len(in_dims)))
        # torch leaves the transform on functorch's stack while its rule runs; the rule's own vmap goes below.
        with temporarily_pop_interpreter_stack(), as_from_outside():
            return operator.batch(info, dims, in_order(args, kwargs))

    def flops(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return operator.count_flops(in_order(args, kwargs), out_val)

    library.impl(contract.name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualname, fake, lib=library)
    if any(a.kind is Kind.TENSOR_LIST for a in signature.arguments):
        # An autograd.Function does not look into lists: torch's own does, but not inside torch.func.
        torch.library.register_autograd(qualname, backward, setup_context=setup_context, lib=library)
        torch.library.register_vmap(qualname, batch, lib=library)
    else:
        function = make_function(operator, overload, in_order)
        autograd = meets_autograd(operator, overload, in_order, function)
        library.impl(contract.name, autograd, "Autograd", with_keyset=True)
        transforms = meets_transforms(operator, in_order, function)
        library.impl(contract.name, transforms, "FuncTorchDynamicLayerFrontMode")
    if contract.autocast is not None:
        for device_type, key in KEYS.items():
            library.impl(contract.name, meets_autocast(contract, overload, device_type), key)
    torch.utils.flop_counter.register_flop_formula(overload.overloadpacket, get_raw=True)(flops)
    torch._decomp.register_decomposition(overload)(_decomposition(operator, overload, in_order))
    _trace_into_kernels(operator, library, in_order)
    return overload


def _decomposition(
    operator: Registrable, overload: Any, in_order: Callable[..., tuple[Any, ...]]
) -> Callable[..., Any]:
    """The meaning as a decomposition: DTensor takes placements from it, and ``run_decompositions`` uses it.

    Fake tensors with symbolic sizes go through it as well, past the fake (``FakeTensorMode`` prefers it), so what has
    to be done before something is compiled is done here too.
    """

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        _stamp_compile_caches(operator)
        _keep_kernels_in_inductor(overload)
        return operator.contract.pack(operator.contract.traceable(in_order(args, kwargs)))

    return decomposition


def _trace_into_kernels(
    operator: Registrable, library: torch.library.Library, in_order: Callable[..., tuple[Any, ...]]
) -> None:
    """Show torch.compile the inside of kernels that it can trace, as ``torch.library.triton_op`` does.

    Functionalisation is where AOTAutograd meets the operator. Export keeps it opaque, so that an
    exported program stays high-level and can be serialised.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
    from torch.export._trace import custom_triton_ops_decomposition_disabled

    plain = (FakeTensor, FunctionalTensor, torch.Tensor, torch.nn.Parameter)

    def functionalise(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if any(t not in plain for t in types):
            return NotImplemented  # a subclass goes first, and sees the operator
        kernel = None
        if not custom_triton_ops_decomposition_disabled():
            kernel = operator.traceable_kernel(in_order(args, kwargs))
        if kernel is None:
            return mode.__torch_dispatch__(func, types, args, kwargs)
        with mode:
            return kernel(*in_order(args, kwargs))

    torch.library.register_torch_dispatch(operator.contract.qualname, FunctionalTensorMode, functionalise, lib=library)


def _define_vjp(operator: Registrable, library: torch.library.Library) -> None:
    """Register the derived backward as an operator of its own (see ``runtime/backward.py``)."""
    contract = operator.contract
    name = backward_rules.vjp_name(contract)
    qualname = f"{contract.namespace}::{name}"
    rules = backward_rules.VjpRules(contract)
    library.define(name + backward_rules.vjp_schema(contract), tags=(torch.Tag.pt2_compliant_tag,))
    library.impl(name, rules.run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualname, rules.fake, lib=library)
    torch.library.register_autograd(qualname, rules.backward, setup_context=rules.setup_context, lib=library)
