"""The contract: an operator's name, typed shapes and reference, as one record."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NoReturn

import torch

from opwright import tree
from opwright.contract.conversion import Conversion, conversion_of
from opwright.contract.fingerprint import digest, fingerprint
from opwright.contract.own_inputs import OwnInputs
from opwright.contract.process_group import ProcessGroup
from opwright.contract.reference import contiguous_outputs, run_reference, run_traceable
from opwright.contract.shapes.dims import names_of
from opwright.contract.shapes.relations import Relation
from opwright.contract.signature import Argument, Kind, Return, Signature
from opwright.errors import ContractError, KernelError

__all__ = ["Contract", "checked_name", "infer_schema"]


@dataclass(frozen=True, eq=False)
class Contract:
    """The definition of an operator, independent of kernels, registration and checks."""

    qualname: str
    signature: Signature
    function: Callable[..., Any]
    schema: str
    module: str
    file: str | None
    doc: str
    autocast: str | None = None
    where: tuple[Relation, ...] = ()
    # Whether results are random; the name of the int argument that is the seed, if there is one.
    random: bool | str = False
    # Whether the same arguments are to give the same bits in every call.
    deterministic: bool = False
    # Whether products of float32 matrices may have operands in TF32.
    tf32: bool = False
    # The operator of which this one is the functional form, if it is one.
    functional_of: str = ""
    own_inputs: OwnInputs = field(default_factory=OwnInputs)

    @property
    def namespace(self) -> str:
        return self.qualname.split("::")[0]

    @property
    def name(self) -> str:
        return self.qualname.split("::")[1]

    def renamed(self, qualname: str) -> Contract:
        """The same operator under another name."""
        return dataclasses.replace(self, qualname=checked_name(qualname))

    def with_form(self, qualname: str, signature: Signature, function: Callable[..., Any]) -> Contract:
        """Another operator that is made of this one."""
        schema = infer_schema(qualname, signature)
        return dataclasses.replace(self, qualname=qualname, signature=signature, function=function, schema=schema)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the schema or anything that the reference reaches changes."""
        return digest(
            self.qualname,
            self.schema,
            str(self.signature.visible),
            str(self.autocast),
            *map(str, self.where),
            str(self.random),
            *["deterministic"] * self.deterministic,
            *["tf32"] * self.tf32,
            *(f"no gradient {i}" for i in sorted(self.signature.without_gradient)),
            *(f"group {i}" for i in self.signature.groups),
            fingerprint(self.function),
        )

    @cached_property
    def conversions(self) -> tuple[tuple[int, type, Conversion], ...]:
        """For each argument that the dispatcher may convert: its position, the type that needs no conversion, and the
        conversion."""
        found = [(i, conversion_of(a)) for i, a in enumerate(self.signature.arguments)]
        return tuple((i, *conversion) for i, conversion in found if conversion is not None)

    @cached_property
    def free_numbers(self) -> frozenset[int]:
        """The positions of numbers on which no condition of the contract depends, so that calls with any such numbers
        are valid if one is."""
        named = {name for a in self.signature.arguments if a.tensor is not None for name in names_of(a.tensor.dims)}
        for relation in self.where:
            named |= relation.names
        return frozenset(
            i
            for i, a in enumerate(self.signature.arguments)
            if a.scalar_type in (int, float) and not a.choices and a.name not in named
        )

    @cached_property
    def classes(self) -> dict[int, type[Enum | ProcessGroup]]:
        """The class of each argument that is a text to the dispatcher, by position: a ``StrEnum``, a process group."""
        choices = ((i, a.choices[0]) for i, a in enumerate(self.signature.arguments) if a.choices)
        found: dict[int, type[Enum | ProcessGroup]] = {i: type(c) for i, c in choices if isinstance(c, Enum)}
        return found | dict.fromkeys(self.signature.groups, ProcessGroup)

    def with_members(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments with members of a ``StrEnum``, and process groups, in the place of their texts, which the
        dispatcher passes."""
        if not self.classes:
            return arguments
        converted = list(arguments)
        for i, kind in self.classes.items():
            with contextlib.suppress(ValueError, TypeError):  # bind() refuses it
                converted[i] = None if converted[i] is None else kind(converted[i])
        return tuple(converted)

    @cached_property
    def tails(self) -> dict[int, tuple[Any, ...]]:
        """By the number of positional arguments: the defaults of all that follow, if all have one."""
        positional, every = len(self.signature.positional), self.signature.arguments
        return {
            n: tuple(a.default for a in every[n:])
            for n in range(positional + 1)
            if all(a.has_default for a in every[n:])
        }

    @cached_property
    def call_form(self) -> str:
        """How the operator is called, for messages: ``demo::saxpy(x: Float[*n], a: float)``."""
        shown = []
        for argument in self.signature.arguments:
            if argument.keyword_only and "*" not in shown:
                shown.append("*")
            shown.append(_show_argument(argument))
        where = f" where {', '.join(map(str, self.where))}" if self.where else ""
        return f"{self.qualname}({', '.join(shown)}){where}"

    @cached_property
    def functional(self) -> Contract | None:
        """The operator that returns new values of mutated arguments after the outputs, instead of writing them: this
        one, if it writes none; None if it writes lists, whose length no schema of a tuple expresses."""
        return _functional_form(self) if self.signature.mutated else self

    def reference(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The reference's results: its outputs, then the new values of mutated arguments, lists flattened.

        All are contiguous and freshly allocated, and no argument is written. ``arguments`` in signature order.
        """
        return self._results(run_reference, arguments)

    def traceable(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Like ``reference``, with torch operations only: differentiable, and usable with fake tensors."""
        return self._results(run_traceable, arguments)

    def run_in_place(self, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Run the reference on the arguments themselves, which it may write; its outputs are fresh and contiguous."""
        return self._finish(run_reference(self.function, self.signature, arguments), arguments)

    def _results(self, run: Callable[..., Any], arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        if not self.signature.mutated:
            return self._finish(run(self.function, self.signature, arguments), arguments)
        copies = self.with_copies(arguments)
        outputs = self._finish(run(self.function, self.signature, copies), copies)
        return (*outputs, *(t.contiguous() for t in self.signature.written(copies)))

    def with_copies(self, arguments: Sequence[Any]) -> list[Any]:
        """The arguments with contiguous copies in the place of mutated ones."""

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone(memory_format=torch.contiguous_format)

        return [tree.map_tensors(copy, a) if i in self.signature.mutated else a for i, a in enumerate(arguments)]

    def results(self, returned: Any, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """What ``reference`` computes, of a call: what it returned, then its mutated arguments."""
        return (*self.unpack(returned), *self.signature.written(arguments))

    def result_names(self, arguments: Sequence[Any], results: Sequence[Any]) -> list[str]:
        """How messages call each of ``results``; "" for the only one."""
        count = self.signature.output_count(results)
        several = self.signature.returns_list or count + len(self.signature.mutated) > 1
        names = [f"output {i}" if several else "" for i in range(count)]
        for i in self.signature.mutated:
            argument, tensors = self.signature.arguments[i], tree.tensors([arguments[i]])
            listed = [f"[{j}]" for j in range(len(tensors))] if argument.kind is Kind.TENSOR_LIST else [""]
            names += [f"argument {argument.name + index!r} after the call" for index in listed[: len(tensors)]]
        return names

    def _finish(self, outputs: Any, arguments: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        return contiguous_outputs(outputs, self.signature, arguments, self.qualname)

    def pack(self, outputs: Sequence[torch.Tensor]) -> Any:
        """The outputs as the operator returns them: one tensor, a tuple, a list, or None if it has none."""
        if self.signature.returns_list:
            return list(outputs)
        if self.signature.returns_tuple:
            return tuple(outputs)
        return outputs[0] if self.signature.returns else None

    def visible(self, result: Any) -> Any:
        """The result of ``pack`` without the outputs that are saved for the backward."""
        count = self.signature.visible
        if count >= len(self.signature.returns):
            return result
        return result[0] if count == 1 else tuple(result[:count])

    def has_form(self, result: Any) -> bool:
        """Whether a kernel's result is of the form of ``pack``, which the dispatcher takes; a list may stand for a
        tuple."""
        signature = self.signature
        if not signature.returns_tuple and not signature.returns_list:
            return isinstance(result, torch.Tensor) if signature.returns else result is None
        if not isinstance(result, tuple | list) or not all(isinstance(each, torch.Tensor) for each in result):
            return False
        return signature.returns_list or len(result) == len(signature.returns)

    def refuse_form(self, result: Any) -> NoReturn:
        """Raise the error for a kernel's result without ``has_form``.

        Raises:
            KernelError: it is neither a tensor nor a tuple of tensors, or of another number of them.
        """
        signature, count = self.signature, len(self.signature.returns)
        expected = "a list of tensors" if signature.returns_list else f"a tuple of {count} tensors"
        if not signature.returns_tuple and not signature.returns_list:
            expected = "a tensor" if count else "None"
        got = type(result).__name__
        if isinstance(result, tuple | list):
            got += f" of {', '.join(type(each).__name__ for each in result) or 'nothing'}"
        raise KernelError(
            f"{self.qualname}: a kernel must return {expected}, got {got}", fix=f"the contract is {self.call_form}"
        )

    def unpack(self, result: Any) -> tuple[Any, ...]:
        """The reverse of ``pack``, for a kernel's result."""
        if (self.signature.returns_tuple or self.signature.returns_list) and isinstance(result, tuple | list):
            return tuple(result)
        return () if result is None and not self.signature.returns else (result,)


def checked_name(qualname: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", qualname):
        raise ContractError(
            f'the operator must be named "namespace::name", got {qualname!r}',
            fix="write two Python identifiers with :: between, as in demo::saxpy",
        )
    return qualname


def infer_schema(qualname: str, signature: Signature) -> str:
    def prototype() -> None: ...

    prototype.__signature__ = signature.to_python()  # type: ignore[attr-defined]
    try:
        schema = torch.library.infer_schema(prototype, mutates_args=[a.name for a in signature.arguments if a.mutated])
    except ValueError as error:
        raise ContractError(
            f"{qualname}: torch cannot express this signature: {error}",
            fix="change the type or default that it names; "
            "a default must be None, a number, a bool, a str, a dtype or a device, or a list of numbers",
        ) from error
    for argument in signature.arguments:
        if argument.has_list_default:  # infer_schema takes none
            listed = f"{argument.name}=[{', '.join(str(v) for v in argument.default)}]"
            mark = "?" if argument.optional else ""
            schema = schema.replace(f"[]? {argument.name}=None", f"[]{mark} {listed}")
    return schema


def _functional_form(contract: Contract) -> Contract | None:
    """``namespace::name_functional``: the outputs, then a new value for each mutated argument.

    Gradients, vmap rules and everything else are derived from it as from any operator. None if the operator writes a
    list of tensors or an optional one, since the number of outputs of an operator is fixed.
    """
    signature = contract.signature
    written = [signature.arguments[i] for i in signature.mutated]
    if any(a.kind is Kind.TENSOR_LIST or a.optional for a in written):
        return None
    tensors = [*(r.tensor for r in signature.returns), *(a.tensor for a in written if a.tensor is not None)]
    form = Signature(
        _arguments_of_form(signature),
        tuple(map(Return, tensors)),
        len(tensors) > 1,
    )
    made = contract.with_form(f"{contract.qualname}_functional", form, _reference_of_form(contract))
    return dataclasses.replace(made, functional_of=contract.qualname)


def _arguments_of_form(signature: Signature) -> tuple[Argument, ...]:
    """Those of the operator. If a keyword-only one is written (``out=``), all become positional, since torch
    differentiates by positional arguments only; a default before one without is then left out."""
    unmarked = [dataclasses.replace(a, mutated=False) for a in signature.arguments]
    if not any(a.keyword_only and a.mutated for a in signature.arguments):
        return tuple(unmarked)
    last = max((i for i, a in enumerate(unmarked) if not a.has_default), default=0)
    return tuple(
        dataclasses.replace(a, keyword_only=False, default=inspect.Parameter.empty if i < last else a.default)
        for i, a in enumerate(unmarked)
    )


def _reference_of_form(contract: Contract) -> Any:
    signature, function = contract.signature, contract.function

    @functools.wraps(function)
    def reference(*args: Any, **kwargs: Any) -> Any:
        named = (kwargs[a.name] for a in signature.keyword_only if a.name in kwargs)
        arguments = contract.with_copies([*args, *named])
        returned = signature.call(function, arguments)
        found = contract.results(returned, arguments)
        return found if len(found) > 1 else found[0]

    return reference


def _show_scalar(argument: Argument) -> str:
    if argument.is_group:
        return "ProcessGroup"
    if argument.choices:
        return " | ".join(repr(str(c) if isinstance(c, str) else c) for c in argument.choices)
    items = {Sequence[int]: "int", Sequence[float]: "float", Sequence[bool]: "bool"}.get(argument.scalar_type)
    if items is None:
        return str(argument.scalar_type.__name__)
    return f"list[{items}]" if argument.length is None else f"tuple[{', '.join([items] * argument.length)}]"


def _show_argument(argument: Argument) -> str:
    if argument.tensor is not None:
        shown = str(argument.tensor)
        if argument.kind is Kind.TENSOR_LIST:
            shown = f"list[{shown}]"
    else:
        shown = _show_scalar(argument)
    if argument.optional and "None" not in shown:
        shown += " | None"
    shown += ", mutated" if argument.mutated else ", no gradient" if argument.no_gradient else ""
    default = f" = {argument.default!r}" if argument.has_default else ""
    return f"{argument.name}: {shown}{default}"
