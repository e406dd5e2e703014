"""The calls of simulated host functions: of functions, methods and macros, and launches of kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from opwright.backends.cuda.host.addresses import DEVICE, WITH_ADDRESSES, Variable
from opwright.backends.cuda.host.expressions import NUMBERS, Expressions, Returned, Run, Scope
from opwright.backends.cuda.host.functions import FUNCTIONS, METHODS, NO_EFFECT, dispatched_dtypes
from opwright.backends.cuda.host.memory import MEMORY
from opwright.backends.cuda.host.syntax import inner_of, parsed, plain_type, text_of
from opwright.backends.cuda.host.values import (
    CPP_TYPES,
    Dim3,
    KernelName,
    Pointer,
    are_other_types,
    dtype_of_type,
    element,
    with_types,
)
from opwright.backends.cuda.simulated import telling_limits_from_errors
from opwright.backends.gpu.cuda_launches import who_takes_cuda_launches
from opwright.backends.simulation import Parameter, simulated_kernel, split_commas
from opwright.errors import CompileError, LaunchError, NotSimulatedError

__all__ = ["Calls"]

_CHECKS = frozenset({
    "TORCH_CHECK", "STD_TORCH_CHECK", "TORCH_INTERNAL_ASSERT", "TORCH_CHECK_VALUE", "TORCH_CHECK_TYPE",
    "TORCH_CHECK_INDEX", "AT_ASSERT", "AT_ASSERTM", "assert",
})  # fmt: skip
_WITH_ADDRESSES = WITH_ADDRESSES | MEMORY
_DISPATCH = re.compile(r"(?:AT_DISPATCH|THO_DISPATCH)_\w+")


# The bytes of dynamic shared memory that every kernel may have, and those that it may be given.
_SHARED_BYTES, _MOST_BYTES = DEVICE.field("sharedMemPerBlock"), DEVICE.field("sharedMemPerBlockOptin")
_MOST_SHARED, _ANY = "cudaFuncAttributeMaxDynamicSharedMemorySize", "any kernel"


class Calls(Expressions):
    """What an expression calls."""

    # By kernel, the bytes of dynamic shared memory that cudaFuncSetAttribute has allowed it.
    shared_bytes: dict[str, int]

    def _of_call_expression(self, node: Any) -> Run:
        called, listed = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        arguments = [child for child in listed.named_children if child.type != "comment"]
        configuration = next((child for child in node.children if child.type == "kernel_call_syntax"), None)
        if configuration is not None:
            return self._launch(node, called, configuration.named_children, arguments)
        if called.type == "field_expression":
            return self._method(called, arguments)
        text = text_of(called)
        name, _, templated = text.partition("<")
        bare = name.rpartition("::")[2].strip()
        if bare in ("static_cast", "reinterpret_cast", "const_cast"):
            return self._cast(templated.rpartition(">")[0], self._value(arguments[0]), node)
        if bare in _CHECKS:
            return self._check(node, arguments)
        if bare == "AT_ERROR":
            return self._error(node)
        if bare in NO_EFFECT:
            return lambda scope: 0
        if bare == "cudaFuncSetAttribute":
            return self._attribute_of_a_kernel(arguments)
        if _DISPATCH.fullmatch(bare):
            return self._dispatch(node, bare, arguments)
        if bare == "numeric_limits":
            return self._limit(node, templated)
        if re.fullmatch(r"std::get<\d+>", text) and len(arguments) == 1:
            index, whole = int(templated[:-1]), self._value(arguments[0])
            return lambda scope: self._guarded(node, element, whole(scope), index)
        return self._call(node, bare, templated.rpartition(">")[0], arguments)

    def _of_primitive_type(self, node: Any) -> Run:
        raise self._not_simulated(node, "a type as a value")

    def _kernel_of(self, called: Any, text: str, bare: str) -> Run:
        """The name of the kernel that is launched: it may be the value of a variable."""
        if not self.is_kernel(bare) and "<" not in text:
            variable = self._value(called)

            def value(scope: Scope) -> Any:
                kernel = variable(scope)
                if not isinstance(kernel, KernelName) or self._lacks_arguments(kernel):
                    raise self._not_simulated(called, f"a launch of {text}")
                return kernel

            return value
        if self._lacks_arguments(text):
            raise self._not_simulated(called, f"the launch of the template {text} without its arguments")
        return lambda scope: with_types(text, scope)

    def _attribute_of_a_kernel(self, arguments: Sequence[Any]) -> Run:
        """``cudaFuncSetAttribute``: how much dynamic shared memory a kernel may have. Where its name is not plain, it
        counts for all."""
        kernel = arguments[0]
        while kernel.type in ("cast_expression", "parenthesized_expression"):
            kernel = kernel.child_by_field_name("value") or kernel.named_children[0]
        named, which = self._kernel_or_any(kernel), text_of(arguments[1]) if len(arguments) == 3 else ""
        count = self._value(arguments[2]) if which.endswith(_MOST_SHARED) else lambda scope: None

        def run(scope: Scope) -> int:
            if (most := count(scope)) is not None and most <= _MOST_BYTES:  # CUDA refuses more, and changes nothing
                self.shared_bytes[_plain(named(scope))] = int(most)
            return 0

        return run

    def _kernel_or_any(self, node: Any) -> Run:
        text = text_of(node)
        try:
            return self._kernel_of(node, text, text.partition("<")[0].rpartition("::")[2])
        except NotSimulatedError:
            return lambda scope: _ANY

    def _refuse_shared(self, kernel: str, count: Any, node: Any) -> None:
        most = max(self.shared_bytes.get(_plain(kernel), 0), self.shared_bytes.get(_ANY, 0), _SHARED_BYTES)
        if isinstance(count, int) and count > most:
            raise LaunchError(
                f"{self._where(node)}: {kernel} may have {most:,} bytes of dynamic shared memory, got {count:,}",
                fix=f"call cudaFuncSetAttribute({kernel}, {_MOST_SHARED}, bytes) before the launch",
            )

    def _lacks_arguments(self, text: str) -> bool:
        return "<" not in text and self.module.source.defining(text).is_template(text.rpartition("::")[2])

    def _limit(self, node: Any, text: str) -> Run:
        """``std::numeric_limits<T>::max()``, and others."""
        type_name, _, which = text.rpartition(">::")
        if which not in ("max", "lowest", "min", "infinity", "epsilon"):
            raise self._not_simulated(node, f"the limit {which}")

        def run(scope: Scope) -> Any:
            dtype = dtype_of_type(scope.get(f"type {type_name}", type_name))
            if dtype is None or (which in ("infinity", "epsilon") and not dtype.is_floating_point):
                raise self._not_simulated(node, f"a limit of {type_name}")
            if which == "infinity":
                return float("inf")
            limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
            names = {"epsilon": "eps", "lowest": "min", "min": "tiny" if dtype.is_floating_point else "min"}
            return getattr(limits, names.get(which, which))

        return run

    def _call(self, node: Any, name: str, templated: str, arguments: Sequence[Any]) -> Run:
        macro = self._macro_called(name, node, has_parameters=True)
        if macro is not None:
            return self._macro(node, macro, arguments)
        if not self._is_known(name):
            raise self._not_simulated(node, f"a call of {name}")
        takes_addresses = name in _WITH_ADDRESSES and name not in self.lambdas | self.own_names
        values = [self._address(a) if takes_addresses and _is_address(a) else self._value(a) for a in arguments]
        if name in NUMBERS:
            return self._cast(name, values[0], node)
        if name == "dim3":
            return lambda scope: Dim3(*(int(value(scope)) for value in values))
        if name in self.lambdas and not templated:
            return lambda scope: self._guarded(node, scope[name], *(value(scope) for value in values))
        if name in self.own_names:
            own = self.own_call(name, split_commas(templated) if templated else (), node)
            return lambda scope: self._guarded(node, own(scope), *(value(scope) for value in values))
        function = (_WITH_ADDRESSES if takes_addresses else FUNCTIONS).get(name)
        if function is None or (templated and (name not in ("min", "max") or templated not in NUMBERS)):
            raise self._not_simulated(node, f"a call of {name}")
        if templated:
            values = [self._cast(templated, value, node) for value in values]
        return lambda scope: self._guarded(node, function, *(value(scope) for value in values))

    def _is_known(self, name: str) -> bool:
        known = (NUMBERS, ("dim3",), self.lambdas, self.own_names, _WITH_ADDRESSES, FUNCTIONS)
        return any(name in names for names in known)

    def _address(self, node: Any) -> Run:
        """``&variable``, for a function that reads it or assigns to it before it returns. A cast of it to ``void**``,
        as ``cudaMalloc`` has it in C, is the same."""
        node = node.child_by_field_name("value") if node.type == "cast_expression" else node
        target, sign = node.child_by_field_name("argument"), text_of(node.child_by_field_name("operator"))
        if sign != "&" or target.type != "identifier":
            raise self._not_simulated(node, text_of(node))
        name, value, assign = text_of(target), self._value(target), self._assignment(target)

        def run(scope: Scope) -> Variable:
            def assign_own(new: Any) -> None:
                if name not in scope:
                    raise self._not_simulated(node, f"a change of {name}, which is outside of functions")
                assign(scope, new)

            known = scope.get(f"pointed {name}") or scope.get(f"declared {name}", "unknown")
            return Variable(known, lambda: value(scope), assign_own)

        return run

    def _method(self, called: Any, arguments: Sequence[Any]) -> Run:
        whole, member = self._value(called.child_by_field_name("argument")), called.child_by_field_name("field")
        name, _, templated = text_of(member).partition("<")
        if name.strip() not in METHODS:
            raise self._not_simulated(called, f"the method {name}")
        method, values = METHODS[name.strip()], [self._value(argument) for argument in arguments]
        type_name = plain_type(templated.rpartition(">")[0])

        def run(scope: Scope) -> Any:
            types = [scope.get(f"type {type_name}", type_name)] if type_name else []
            return self._guarded(called, method, whole(scope), *types, *(value(scope) for value in values))

        return run

    def _check(self, node: Any, arguments: Sequence[Any]) -> Run:
        condition = self._value(arguments[0])
        text = f"{self._where(node)}: {text_of(node)}"

        def run(scope: Scope) -> None:
            if not condition(scope):
                raise RuntimeError(text)

        return run

    def _error(self, node: Any) -> Run:
        text = f"{self._where(node)}: {text_of(node)}"

        def run(scope: Scope) -> None:
            raise RuntimeError(text)

        return run

    def _macro(self, node: Any, macro: Any, arguments: Sequence[Any]) -> Run:
        names, body = [n.strip() for n in macro.parameters.strip("()").split(",")], self._body_of(macro)
        if "..." in names or len(names) != len(arguments):
            raise self._not_simulated(node, f"the macro {macro.name}")
        for name, argument in zip(names, map(text_of, arguments), strict=True):
            body = re.sub(rf"#\s*{name}\b", lambda _, a=argument: f'"{a}"', body)  # type: ignore[misc]
            body = re.sub(rf"\b{name}\b", lambda _, a=argument: a, body)  # type: ignore[misc]
        if "##" in body or (tree := parsed(f"{body.strip().rstrip(';')};", node)) is None:
            raise self._not_simulated(node, f"the macro {macro.name}")
        parts = [child for child in tree.named_children if child.type != "comment"]
        if len(parts) == 1 and parts[0].type == "expression_statement" and parts[0].named_children:
            return self._value(parts[0].named_children[0])
        return self.statement(tree)

    def _dispatch(self, node: Any, macro: str, arguments: Sequence[Any]) -> Run:
        name_at = next((i for i, a in enumerate(arguments) if a.type == "string_literal"), None)
        bodies = [found for a in arguments if (found := inner_of(a, "lambda_expression")) is not None]
        dtypes = dispatched_dtypes(" ".join([macro, *map(text_of, arguments)]) if macro.startswith("THO") else macro)
        if name_at is None or name_at == 0 or len(bodies) != 1 or dtypes is None:
            raise self._not_simulated(node, macro)
        chosen = self._value(arguments[name_at - 1])
        others = [a for a in (*arguments[: name_at - 1], *arguments[name_at + 1 :]) if "identifier" in a.type]
        more = [self._value(a) for a in others]
        body = self.statement(bodies[0].child_by_field_name("body"))

        def run(scope: Scope) -> Any:
            dtype = chosen(scope)
            if dtype not in dtypes | {value(scope) for value in more}:
                raise RuntimeError(f"{self._where(node)}: {macro} has no {dtype}")
            before = scope.get("type scalar_t")
            scope["type scalar_t"] = CPP_TYPES[dtype]
            try:
                body(scope)
            except Returned as returned:
                return returned.value
            finally:
                scope["type scalar_t"] = before
            return None

        return run

    def _launch(self, node: Any, called: Any, configuration: Sequence[Any], arguments: Sequence[Any]) -> Run:
        text = text_of(called)
        bare = text.partition("<")[0].rpartition("::")[2]
        named = self._kernel_of(called, text, bare)
        places = [self._value(part) for part in configuration[:3]]
        values = [self._value(argument) for argument in arguments]

        def run(scope: Scope) -> None:
            name = named(scope)
            kernel, launch = self.module[name], tuple(place(scope) for place in places)
            passed = [value(scope) for value in values]
            if 0 in launch[0] if isinstance(launch[0], tuple) else launch[0] == 0:
                raise LaunchError(
                    f"{self._where(node)}: a grid must have blocks, got {launch[0]}",
                    fix="return before the launch where there is nothing to do: a GPU refuses an empty grid",
                )
            self._refuse_shared(name, launch[2] if len(launch) > 2 else 0, node)
            taken_over = who_takes_cuda_launches()
            if taken_over is not None:  # meta tensors have no memory to pass, and no simulator need be compiled
                taken_over(kernel, launch)
                return
            with telling_limits_from_errors(self.module.source, kernel.name):
                parameters = simulated_kernel(self.module.source, kernel.name).parameters
            if len(passed) != len(parameters):
                raise RuntimeError(f"{self._where(node)}: {text} takes {len(parameters)} arguments, got {len(passed)}")
            for value, parameter in zip(passed, parameters, strict=True):
                self._refuse_other_pointer(node, value, parameter)
            kernel[launch](*map(_implicitly, passed, parameters))

        return run

    def _refuse_other_pointer(self, node: Any, value: Any, parameter: Parameter) -> None:
        wanted = plain_type(parameter.type_name)
        if not isinstance(value, Pointer) or not wanted.endswith("*") or wanted == "void*":
            return
        if are_other_types(value.type_name, wanted[:-1].strip()):
            raise CompileError(
                f"{self._where(node)}: {text_of(node)}: an argument must be a {wanted}, got a {value.type_name}*",
                fix="cast it: C++ does not convert one into the other",
            )


def _plain(kernel: str) -> str:
    return kernel if kernel == _ANY else kernel.replace(" ", "")


def _is_address(node: Any) -> bool:
    if node.type == "cast_expression" and plain_type(text_of(node.child_by_field_name("type"))) == "void**":
        node = node.child_by_field_name("value")
    return bool(node.type == "pointer_expression")


def _implicitly(value: Any, parameter: Parameter) -> Any:
    """A number as C++ converts it to a parameter's type, and the memory of a pointer."""
    if isinstance(value, Pointer):
        return value.memory()
    if not isinstance(value, int | float):
        return value
    kinds = {"floating": float, "integer": int, "unsigned": int, "bool": bool}
    return kinds[parameter.kind](value) if parameter.kind in kinds else value
