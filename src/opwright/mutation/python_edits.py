"""The edits of Python functions: launchers, NumPy and Triton kernels. Read from the syntax tree, made in the text."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from opwright.mutation.edits import Edit, distinct
from opwright.mutation.words import ARITHMETIC, BITWISE, BOUNDS, FUNCTIONS, LOGIC, number_edits

__all__ = ["Function", "edits_of"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMPARISONS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_OPERATORS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Mod: "%", ast.FloorDiv: "//", ast.Pow: "**",
    ast.MatMult: "@", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^", ast.LShift: "<<", ast.RShift: ">>",
}  # fmt: skip
_DTYPES = {
    "float64": "float32", "float32": "float16", "int64": "int32", "int32": "int8", "uint32": "uint8", "int16": "int8",
    "double": "float", "complex128": "complex64",
}  # fmt: skip
# What a right kernel may have in any value: Triton's launch options, and memory formats of fresh tensors.
_TUNING = frozenset({
    "num_warps", "num_stages", "num_ctas", "maxnreg", "memory_format", "eviction_policy", "cache_modifier",
    "loop_unroll_factor", "warp_specialize", "input_precision", "out_dtype",
})  # fmt: skip
# Methods whose call is left out, so that what they are called on remains.
_LEFT_OUT = frozenset({"contiguous", "to", "float", "clone", "copy", "astype", "T", "clamp"})
# Calls that only say something to the compiler or to the user.
_SAYS_ONLY = frozenset({"static_assert", "device_assert", "static_print", "device_print", "print", "multiple_of",
                        "max_contiguous", "assume"})  # fmt: skip


def edits_of(functions: Sequence[Function], text: str) -> list[Edit]:
    """All edits of some functions of a text, in its order.

    Docstrings, text, annotations, decorators, defaults, assertions, raised errors with their conditions, and options
    that only tune are left as they are.
    """
    writer = _Writer(text)
    return distinct((edit for function in functions for edit in writer.body(function.body)), text)


class _Writer:
    """Makes the edits of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        # ast counts columns in bytes of UTF-8.
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None  # nodes of ast.parse have both
        assert node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def _replace(self, node: ast.expr | ast.stmt, new: str, operator: str) -> Edit:
        start, end = self._span(node)
        lost = self.text.count("\n", start, end) - new.count("\n")
        # Lines after it keep their numbers, by which functions are found again.
        inside = "\\\n" * lost if isinstance(node, ast.expr) else "\n" * lost
        return Edit(start, end, new + inside, operator)

    def _source(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self.text[start:end]

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str, operator: str) -> Iterator[Edit]:
        """Replace an operator between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        at = self.text.find(old, start, end)
        if at >= 0 and "#" not in self.text[start:at]:
            yield Edit(at, at + len(old), new, operator)

    # -- statements ---------------------------------------------------------------------------------------------------

    def body(self, statements: Sequence[ast.stmt]) -> Iterator[Edit]:
        for statement in statements:
            yield from self._statement(statement)

    def _statement(self, node: ast.stmt) -> Iterator[Edit]:
        match node:
            case ast.Assert() | ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal():
                return
            case ast.Expr(value=ast.Constant()):
                return  # a docstring
            case ast.Expr(value=ast.Call() as call):
                if _last_name(call.func) in _SAYS_ONLY:
                    return
                yield self._replace(node, "pass", "statement removed")
            case ast.AugAssign(op=op):
                yield self._replace(node, "pass", "statement removed")
                yield from self._augmented(node, op)
            case ast.If(test=test):
                if _only_raises(node.body) and not node.orelse:
                    return
                yield self._replace(test, f"(not ({self._source(test)}))", "condition negated")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self.body(node.body)
                return
        yield from self._fields(node)

    def _fields(self, node: ast.AST) -> Iterator[Edit]:
        """The edits of what a statement consists of."""
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if field in ("annotation", "returns"):
                    continue
                if isinstance(child, ast.stmt):
                    yield from self._statement(child)
                elif isinstance(child, ast.expr):
                    yield from self._target(child) if field in ("target", "targets") else self._expression(child)
                elif isinstance(child, ast.withitem | ast.excepthandler | ast.match_case):
                    yield from self._fields(child)

    def _target(self, node: ast.expr) -> Iterator[Edit]:
        """What is assigned to: only its index is an expression."""
        if isinstance(node, ast.Subscript):
            yield from self._index(node)

    def _augmented(self, node: ast.AugAssign, op: ast.operator) -> Iterator[Edit]:
        old = _OPERATORS[type(op)]
        new = ARITHMETIC.get(old) or BITWISE[old]
        yield from self._between(node.target, node.value, f"{old}=", f"{new}=", "arithmetic")

    # -- expressions --------------------------------------------------------------------------------------------------

    def _expression(self, node: ast.AST) -> Iterator[Edit]:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.expr):
            yield from self._of_expression(node)
        for child in self._children(node):
            yield from self._expression(child)

    def _children(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Lambda(body=body):
                yield body
            case ast.Call(func=func, args=args, keywords=keywords):
                if _last_name(func) in _SAYS_ONLY:
                    return
                is_launch = isinstance(func, ast.Subscript)
                # One program more is no fault: kernels mask.
                yield from (func.value, *_parts(func.slice)) if isinstance(func, ast.Subscript) else (func,)
                yield from args
                # In a launch of Triton's, constants in capitals are block sizes, which a right kernel may choose.
                yield from (k.value for k in keywords if not (k.arg in _TUNING or (is_launch and _is_block_size(k))))
            case ast.UnaryOp(operand=ast.Constant(value=int() | float() as value)) if not isinstance(value, bool):
                return  # as a whole
            case _:
                yield from ast.iter_child_nodes(node)

    def _of_expression(self, node: ast.expr) -> Iterator[Edit]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                old = _COMPARISONS[type(op)]
                for new in BOUNDS[old]:
                    yield from self._between(left, right, old, new, "bound")
            case ast.BinOp(left=left, op=op, right=right):
                old = _OPERATORS[type(op)]
                kind = "arithmetic" if old in ARITHMETIC else "mask or bits"
                yield from self._between(left, right, old, ARITHMETIC.get(old) or BITWISE[old], kind)
            case ast.BoolOp(op=op, values=[left, right, *_]):
                old = "and" if isinstance(op, ast.And) else "or"
                yield from self._between(left, right, old, LOGIC[old], "logic")
            case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert(), operand=operand):
                yield self._replace(node, self._source(operand), "sign or negation")
            case ast.Constant(value=bool() as value):
                yield self._replace(node, str(not value), "constant")
            case ast.Constant(value=int() | float()):
                yield from (self._replace(node, new, "constant") for new in number_edits(self._source(node)))
            case ast.IfExp(test=test):
                yield self._replace(test, f"(not ({self._source(test)}))", "condition negated")
            case ast.Attribute(attr=name) if name in _DTYPES:
                yield self._replace(node, f"{self._source(node.value)}.{_DTYPES[name]}", "dtype")
            case ast.Subscript():
                yield from self._index(node)
            case ast.Call():
                yield from self._call(node)

    def _index(self, node: ast.Subscript) -> Iterator[Edit]:
        """An index by a name, one further; numbers in it change as constants."""
        for index in _parts(node.slice):
            if isinstance(index, ast.Name | ast.BinOp):
                yield self._replace(index, f"({self._source(index)}) + 1", "index")

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        name = _last_name(node.func)
        if name in FUNCTIONS:
            whole = self._source(node.func)
            yield self._replace(node.func, whole.removesuffix(name) + FUNCTIONS[name], "function")
        if name in _LEFT_OUT and isinstance(node.func, ast.Attribute) and not _is_module(node.func.value):
            yield self._replace(node, self._source(node.func.value), "call left out")
        if name == "cdiv" and len(node.args) == 2:
            a, b = map(self._source, node.args)
            yield self._replace(node, f"(({a}) // ({b}))", "rounded down")
        for keyword in node.keywords:
            if keyword.arg == "mask" and not isinstance(keyword.value, ast.Constant):
                yield self._replace(keyword.value, f"({self._source(keyword.value)}) | True", "mask removed")


def _parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_module(node: ast.expr) -> bool:
    """Whether a name is one under which a library is imported, so that its attribute is no method."""
    return isinstance(node, ast.Name) and node.id in ("torch", "np", "numpy", "tl", "math", "triton", "F")


def _is_block_size(keyword: ast.keyword) -> bool:
    return keyword.arg is not None and keyword.arg.isupper() and isinstance(keyword.value, ast.Constant)


def _only_raises(statements: Sequence[ast.stmt]) -> bool:
    return all(isinstance(s, ast.Raise) for s in statements)
