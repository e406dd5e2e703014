"""The statements of simulated host functions, and the types of their variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

from opwright.backends.cuda.host.calls import Calls
from opwright.backends.cuda.host.expressions import INSTANCE, NUMBERS, REFERENCE, Returned, Run, Scope
from opwright.backends.cuda.host.syntax import inner_of, leaf_of, parsed_expression, plain_type, text_of
from opwright.backends.cuda.host.values import Dim3, dtype_of_type, type_of

__all__ = ["Statements"]

_TYPES = NUMBERS | {
    "auto", "Tensor", "dim3", "cudaStream_t", "cudaError_t", "CUDAStream", "ScalarType", "IntArrayRef",
    "cudaDeviceProp", "cublasHandle_t", "cublasStatus_t", "cublasOperation_t", "TensorOptions", "Device", "Dtype",
}  # fmt: skip
_GUARDS = frozenset({"CUDAGuard", "OptionalCUDAGuard", "DeviceGuard", "OptionalDeviceGuard"})
# Where a scope says that a lambda refers to its variables.
_BESIDE_LAMBDA = "beside a lambda"
_VECTOR = re.compile(r"(?:std|c10|torch|at)::vector<.*>")


class _Left(Exception):  # no error
    """A loop or a switch ends before its last statement."""


class _Continued(Exception):  # no error
    """A turn of a loop ends before its last statement."""


class Statements(Calls):
    """What a function consists of."""

    def statement(self, node: Any) -> Run:
        return self._translated("_on", node)

    def _on_compound_statement(self, node: Any) -> Run:
        parts = [self.statement(child) for child in node.named_children if child.type != "comment"]
        return self._block(_declared_in(node.named_children), lambda scope: _run_all(parts, scope), node)

    def _block(self, names: Collection[str], run: Run, node: Any) -> Run:
        """What runs with variables of its own. A lambda that captures by reference would see those that hide others."""
        scoped = _in_own_scope(names, run)

        def block(scope: Scope) -> None:
            if scope.get(_BESIDE_LAMBDA) and not scope.keys().isdisjoint(names):
                raise self._not_simulated(node, "a variable that hides another one beside a lambda")
            scoped(scope)

        return block

    def _on_expression_statement(self, node: Any) -> Run:
        return self._value(node.named_children[0]) if node.named_children else lambda scope: None

    def _on_return_statement(self, node: Any) -> Run:
        value = self._value(node.named_children[0]) if node.named_children else lambda scope: None

        def run(scope: Scope) -> None:
            raise Returned(value(scope))

        return run

    def _on_throw_statement(self, node: Any) -> Run:
        text = text_of(node)

        def run(scope: Scope) -> None:
            raise RuntimeError(text)

        return run

    def _on_if_statement(self, node: Any) -> Run:
        clause = node.child_by_field_name("condition")
        first = clause.child_by_field_name("initializer")
        begin = self.statement(first.named_children[0]) if first is not None else lambda scope: None
        condition = self._value(clause.child_by_field_name("value"))
        then, other = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
        yes = self.statement(then)
        no = self.statement(other.named_children[-1]) if other is not None else lambda scope: None

        def run(scope: Scope) -> None:
            begin(scope)
            (yes if condition(scope) else no)(scope)

        return run

    def _on_for_statement(self, node: Any) -> Run:
        parts = [node.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")]
        if any(part is None for part in parts):
            raise self._not_simulated(node, "a loop without an end")
        begin = self.statement(parts[0])
        condition, update = self._value(parts[1]), self._value(parts[2])
        loop = _loop(condition, self.statement(parts[3]), update)
        return self._block(_declared_in([parts[0]]), lambda scope: _run_all((begin, loop), scope), node)

    def _on_while_statement(self, node: Any) -> Run:
        condition = self._value(node.child_by_field_name("condition").child_by_field_name("value"))
        return _loop(condition, self.statement(node.child_by_field_name("body")))

    def _on_do_statement(self, node: Any) -> Run:
        condition = self._value(node.child_by_field_name("condition"))
        return _loop(condition, self.statement(node.child_by_field_name("body")), begins_with_body=True)

    def _on_break_statement(self, node: Any) -> Run:
        def run(scope: Scope) -> None:
            raise _Left

        return run

    def _on_continue_statement(self, node: Any) -> Run:
        def run(scope: Scope) -> None:
            raise _Continued

        return run

    def _on_switch_statement(self, node: Any) -> Run:
        """Control goes on from a case to the next one, as in C++, until it leaves the switch."""
        chosen = self._value(node.child_by_field_name("condition").child_by_field_name("value"))
        cases = [child for child in node.child_by_field_name("body").named_children if child.type != "comment"]
        if any(case.type != "case_statement" for case in cases):
            raise self._not_simulated(node, "a switch with statements before its first case")
        labels, bodies = list[Run | None](), list[list[Run]]()
        for case in cases:
            label = case.child_by_field_name("value")
            labels.append(self._value(label) if label is not None else None)
            own = [c for c in case.named_children if c.type != "comment" and (label is None or c.id != label.id)]
            bodies.append([self.statement(child) for child in own])
        default = labels.index(None) if None in labels else len(labels)

        def run(scope: Scope) -> None:
            value = chosen(scope)
            first = next((i for i, label in enumerate(labels) if label and label(scope) == value), default)
            try:
                for body in bodies[first:]:
                    _run_all(body, scope)
            except _Left:
                pass

        return self._block(_declared_in([c for case in cases for c in case.named_children]), run, node)

    def _on_alias_declaration(self, node: Any) -> Run:
        name = text_of(node.child_by_field_name("name"))
        other = plain_type(text_of(node.child_by_field_name("type")))
        return lambda scope: scope.__setitem__(f"type {name}", scope.get(f"type {other}", other))

    def _on_preproc_def(self, node: Any) -> Run:
        """Macros are known by the file."""
        return lambda scope: None

    _on_preproc_function_def = _on_static_assert_declaration = _on_using_declaration = _on_preproc_def

    def _on_preproc_call(self, node: Any) -> Run:
        if text_of(node.child_by_field_name("directive")) not in ("#pragma", "#undef"):
            raise self._not_simulated(node, "a directive")
        return lambda scope: None

    def _on_declaration(self, node: Any) -> Run:
        parts = [self._declared(node, declarator) for declarator in node.children_by_field_name("declarator")]
        return lambda scope: _run_all(parts, scope)

    def _declared(self, node: Any, declarator: Any) -> Run:
        value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
        inner = declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
        type_name = self._type(node, inner)
        if inner.type == "structured_binding_declarator" and value is not None:
            return self._bound(inner, self._value(value))
        if inner_of(inner, "structured_binding_declarator") is not None:
            raise self._not_simulated(declarator, "a binding by reference")
        name, is_static = text_of(leaf_of(declarator)), any(text_of(child) == "static" for child in node.children)
        pointed = plain_type(text_of(node.child_by_field_name("type"))) if _is_pointer(inner) else ""
        if type_name in _GUARDS:
            return lambda scope: None
        made = self._constructed(declarator, type_name, value)
        if made is None:
            if value is not None and value.type == "lambda_expression":
                self.lambdas.add(name)
            made = self._value(value) if value is not None else lambda scope: None
        make = self._kept if is_static else self._own
        declare = make(name, made, type_name, declarator)
        return self._pointing(declare, name, pointed) if pointed else declare

    def _own(self, name: str, made: Run, type_name: str, declarator: Any) -> Run:
        return lambda scope: self._declare(scope, name, made(scope), type_name, declarator)

    def _pointing(self, declare: Run, name: str, type_name: str) -> Run:
        """The declaration of a pointer to a type: functions that allocate ask for it."""
        known = self.aliases.get(type_name, type_name)

        def run(scope: Scope) -> None:
            declare(scope)
            scope[f"pointed {name}"] = f"{scope.get(f'type {known}', known)}*"

        return run

    def _constructed(self, declarator: Any, type_name: str, value: Any) -> Run | None:
        """What a constructor makes; None for a variable that begins with a value, or with none."""
        is_called = value is not None and value.type == "argument_list"
        if type_name == "dim3" and (value is None or is_called or value.type == "initializer_list"):
            numbers = [self._value(child) for child in self._numbers_of(declarator, value)]
            return lambda scope: Dim3(*(int(number(scope)) for number in numbers))
        if _VECTOR.fullmatch(type_name) and (value is None or is_called):
            return self._vector(declarator, value)
        if is_called or (value is None and declarator.type == "function_declarator"):
            raise self._not_simulated(declarator, f"a {type_name} with a constructor's arguments")
        return None

    def _kept(self, name: str, made: Run, type_name: str, declarator: Any) -> Run:
        """A static variable: it is made in the first call, and the next ones have its last value. Each instance of a
        template has its own."""
        of_instances: dict[Any, Scope] = {}

        def run(scope: Scope) -> None:
            kept = of_instances.setdefault((scope.get(INSTANCE), scope.get("type scalar_t")), {})
            if not kept:
                self._declare(scope, name, made(scope), type_name, declarator)
                kept.update({key: scope[key] for key in (name, f"declared {name}")})
            scope.update(kept)
            scope[f"kept {name}"] = kept

        return run

    def _bound(self, declarator: Any, value: Run) -> Run:
        names = [text_of(child) for child in declarator.named_children]

        def run(scope: Scope) -> None:
            for name, part in zip(names, value(scope), strict=True):
                self._declare(scope, name, list(part) if isinstance(part, list) else part, REFERENCE, declarator)

        return run

    def _vector(self, declarator: Any, value: Any) -> Run:
        """``std::vector<int64_t> sizes;`` and ``sizes(count, value)``."""
        given = [self._value(child) for child in value.named_children] if value is not None else []
        if len(given) > 2:
            raise self._not_simulated(declarator, "a vector with other arguments")

        def run(scope: Scope) -> list[Any]:
            values = [one(scope) for one in given]
            if values and not isinstance(values[0], int):
                raise self._not_simulated(declarator, "a vector with other arguments")
            return (values[1:] or [0]) * values[0] if values else []

        return run

    def _declare(self, scope: Scope, name: str, value: Any, type_name: str, node: Any) -> None:
        """A variable. Later values are converted to its type, too. A vector is copied, but for a reference to it."""
        if type_name == REFERENCE:
            scope[name], scope[f"declared {name}"] = value, REFERENCE
            return
        type_name = scope.get(f"type {type_name}", type_name)
        if type_name in self.type_names:
            raise self._not_simulated(node, f"a variable of type {type_name}")
        copied = list(value) if isinstance(value, list) or _VECTOR.fullmatch(type_name) else value
        scope[name] = self._converted(copied, type_name, node)
        scope[f"declared {name}"] = type_of(value) if type_name == "auto" else type_name

    def _of_lambda_expression(self, node: Any) -> Run:
        captures = text_of(node.child_by_field_name("captures")).strip("[] ")
        if captures not in ("&", "=", ""):
            raise self._not_simulated(node, f"a lambda that captures {captures}")
        declarator = node.child_by_field_name("declarator")
        listed = declarator.child_by_field_name("parameters") if declarator is not None else None
        call = self.callable_of(listed, node.child_by_field_name("body"), node)

        def run(scope: Scope) -> Callable[..., Any]:
            if captures == "&":
                scope[_BESIDE_LAMBDA] = True
                return call(scope)
            return call({name: list(value) if isinstance(value, list) else value for name, value in scope.items()})

        return run

    def callable_of(self, listed: Any, body: Any, node: Any) -> Callable[[Scope], Callable[..., Any]]:
        """A function or lambda with these parameters, in a scope."""
        names, types, defaults = list[str](), list[str](), list[Run | None]()
        for parameter in listed.named_children if listed is not None else ():
            if parameter.type == "comment" or text_of(parameter) == "void":
                continue
            declarator = parameter.child_by_field_name("declarator")
            if parameter.type not in ("parameter_declaration", "optional_parameter_declaration") or declarator is None:
                raise self._not_simulated(parameter, "a parameter of another kind")
            default = parameter.child_by_field_name("default_value")
            names.append(text_of(leaf_of(declarator)))
            types.append(self._type(parameter, declarator))
            defaults.append(self._value(default) if default is not None else None)
        statement, where = self.statement(body), self._where(node)

        def in_scope(outer: Scope) -> Callable[..., Any]:
            def call(*given: Any) -> Any:
                rest = defaults[len(given) :]
                if len(given) > len(names) or None in rest:
                    raise RuntimeError(f"{where}: the function takes {len(names)} arguments, got {len(given)}")
                values = [*given, *(default(outer) for default in rest if default is not None)]

                def run(scope: Scope) -> None:
                    for name, value, type_name in zip(names, values, types, strict=True):
                        self._declare(scope, name, value, type_name, node)
                    statement(scope)

                try:
                    _in_own_scope(names, run)(outer)
                except Returned as returned:
                    return returned.value
                return None

            return call

        return in_scope

    def _numbers_of(self, declarator: Any, value: Any) -> list[Any]:
        """The arguments of a ``dim3``. To the parser, ``dim3 block(TILE, TILE)`` declares a function."""
        if value is None and declarator.type == "function_declarator":
            listed = text_of(declarator.child_by_field_name("parameters"))
            call = parsed_expression(f"dim3{listed}", declarator)
            value = call.child_by_field_name("arguments") if call is not None else None
            if value is None:
                raise self._not_simulated(declarator, f"a declaration of dim3{listed}")
        return [child for child in value.named_children if child.type != "comment"] if value is not None else []

    def _type(self, node: Any, declarator: Any) -> str:
        """The type of a variable or parameter: of pointers that of any, as their values know what they point to."""
        name = plain_type(text_of(node.child_by_field_name("type")))
        name = self.aliases.get(name, name)
        if declarator.type == "pointer_declarator":
            return "auto" if name != "void" else "void*"
        if declarator.type == "reference_declarator" and not re.match(r"(?:\w+\s+)*const\b", text_of(node)):
            return REFERENCE
        short = name.rpartition("::")[2] if "<" not in name else name
        if short in _TYPES or short in _GUARDS or short in self.type_names or dtype_of_type(short) is not None:
            return short
        if re.fullmatch(r"(?:std|c10|torch|at)::(?:optional|tuple)<.*>", name) or _VECTOR.fullmatch(name):
            return name
        raise self._not_simulated(node, f"a variable of type {name}")


def _is_pointer(declarator: Any) -> bool:
    """Whether it declares a pointer to something that is none itself."""
    kind = "pointer_declarator"
    return bool(declarator.type == kind) and inner_of(declarator.named_children[-1], kind) is None


def _declared_in(nodes: Sequence[Any]) -> set[str]:
    """The names that declarations among statements declare."""
    declarators = [d for n in nodes if n.type == "declaration" for d in n.children_by_field_name("declarator")]
    bindings = [inner_of(d, "structured_binding_declarator") for d in declarators]
    bound = {text_of(name) for found in bindings if found is not None for name in found.named_children}
    aliases = {f"type {text_of(n.child_by_field_name('name'))}" for n in nodes if n.type == "alias_declaration"}
    return aliases | bound | {text_of(leaf_of(d)) for d, found in zip(declarators, bindings, strict=True) if not found}


def _in_own_scope(names: Collection[str], run: Run) -> Run:
    """What runs with names of its own: those outside have their values afterwards."""
    hidden = [key for name in names for key in (name, f"declared {name}", f"kept {name}", f"pointed {name}")]

    def scoped(scope: Scope) -> None:
        outer = {key: scope.pop(key) for key in hidden if key in scope}
        try:
            run(scope)
        finally:
            for key in hidden:
                scope.pop(key, None)
            scope.update(outer)

    return scoped


def _run_all(parts: Sequence[Run], scope: Scope) -> None:
    for part in parts:
        part(scope)


def _loop(condition: Run, body: Run, update: Run | None = None, begins_with_body: bool = False) -> Run:
    def run(scope: Scope) -> None:
        is_known = begins_with_body
        while is_known or condition(scope):
            is_known = False
            try:
                body(scope)
            except _Left:
                return
            except _Continued:
                pass
            if update is not None:
                update(scope)

    return run
