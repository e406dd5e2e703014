"""Families of operators: signature, reference, kernels and gradients of a drawn operator, as text of its module."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tests.fast_calls.forms import Definition

__all__ = ["FAMILIES", "HEADER", "Drawn", "Family", "draw_operator"]

HEADER = """\
import functools, math
from typing import Annotated
import torch, torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
import opwright as ow
from tests.fast_calls.driver import KERNELS

SEEN = []
SCALE, BLOCK = 2.0, 128
TABLE = {"scale": 1.5}
WEIGHT = torch.nn.Parameter(torch.ones(()))

def helper(t, k=1.0, *, s=1.0):
    return t * (k * s)

def new_helper(t, k=1.0, *, s=1.0):
    return t * (k * s * 10)

def blocks(n):
    return ow.cdiv(n, BLOCK)

@functools.wraps(F.relu)
def relu(t):
    return F.relu(t) * TABLE["scale"]

class Settings:
    scale = 3.0

settings = Settings()
"""

FLOAT = 'Float[Tensor, "*n"]'


@dataclass(frozen=True)
class Family:
    """Operators with the same parameters.

    Attributes:
        expression: of the reference.
        kinds: what each argument is drawn from (``arguments.py``).
        kernels: more expressions of kernels, which see the exact types of arguments.
        launchers: bodies of launchers around CUDA kernels.
        backward: the rest of a backward operator's parameters and its result; empty for none.
    """

    name: str
    parameters: str
    schema: str
    expression: str
    kinds: tuple[str, ...]
    returns: str = FLOAT
    kernels: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    backward: tuple[str, str] = ("", "")
    mutated: str = ""
    portable: bool = True

    @property
    def names(self) -> list[str]:
        """The parameters' names."""
        return re.findall(r"(\w+): ", self.parameters)


_EXPRESSION_OF_SUM = "x.sum(-1) * a"
FAMILIES = (
    Family(
        "scaled", f"x: {FLOAT}, a: float = 2.0", "(Tensor x, float a=2.0) -> Tensor", "x * a", ("tensor", "float"),
        kernels=("x * torch.tensor([a])", "x * (a + 1.0 / (a if a else 1.0))"),
        launchers=(
            "out = torch.empty_like(x)\nKERNELS['scale'][blocks(x.numel()), BLOCK](x, out, a, x.numel())",
            "x = x.contiguous()\nout = x.new_empty(x.shape)\n"
            "KERNELS['scale'][ow.cdiv(x.numel(), 64), 64](x.view(-1), out, a * SCALE, x.numel())",
            "out = torch.empty(x.shape, dtype=x.dtype, device=x.device)\nhalf = torch.empty_like(out)\n"
            "n = x.numel()\nKERNELS['scale'][blocks(n), BLOCK](x.reshape(-1), half, a, n)\n"
            "KERNELS['scale'][blocks(n), BLOCK](half.view(-1), out, factor(), n)",
            "out = torch.empty_like(x)\nn = x.numel()\nKERNELS['scale'][blocks(n), BLOCK](x, out, a, n)\n"
            "KERNELS['scale'][blocks(n), BLOCK](x.view(-1)[1:], out.view(-1)[1:], 3.0, n - 1 if n > 1 else 0)",
            "out = torch.empty_like(x)\nn = x.numel()\n"
            "KERNELS['scale'][max(n // BLOCK + 1, 1), BLOCK](x, out, a * max(1 + x.storage_offset(), 1), n)",
            "out = torch.empty_like(x)\nn = x.numel()\n"
            "KERNELS['scale'][blocks(n), BLOCK](x, out, a if x.dim() > max(1, len(x.shape) - 9) else -a, n)",
        ),
        backward=("a: float", "grad * a"),
    ),
    Family(
        "repeated", f"x: {FLOAT}, k: int = 1", "(Tensor x, int k=1) -> Tensor", "x * k", ("tensor", "int"),
        kernels=("x * torch.tensor(k)", "x * (k << 1)"), backward=("k: int", "grad * k"),
    ),
    Family(
        "flagged", f"x: {FLOAT}, flag: bool = True", "(Tensor x, bool flag=True) -> Tensor", "x * 2 if flag else -x",
        ("tensor", "bool"), kernels=("x * (2 if flag is True else -1)", "x * torch.tensor(flag)"),
    ),
    Family(
        "worded", f"x: {FLOAT}, word: str = 'up'", "(Tensor x, str word='up') -> Tensor",
        "x * (1 + len(word)) if word == 'up' else -x", ("tensor", "str"),
    ),
    Family(
        "typed", f"x: {FLOAT}, dtype: torch.dtype", "(Tensor x, ScalarType dtype) -> Tensor",
        "x * (2 if dtype is torch.float64 else 3)", ("tensor", "dtype"),
    ),
    Family(
        "placed", f"x: {FLOAT}, device: torch.device", "(Tensor x, Device device) -> Tensor",
        "x * (2 if device == torch.device('cpu') else 3)", ("tensor", "device"),
    ),
    Family(
        "optional", f"x: {FLOAT}, y: {FLOAT} | None = None, a: float | None = None",
        "(Tensor x, Tensor? y=None, float? a=None) -> Tensor",
        "(x if y is None else x * y) * (0.5 if a is None else a)", ("tensor", "tensor?", "float?"),
    ),
    Family(
        "listed", f"x: {FLOAT}, dims: list[int]", "(Tensor x, int[] dims) -> Tensor", "x * (1 + sum(dims))",
        ("tensor", "ints"),
        kernels=("x * (1 + sum(dims)) * (1 if type(dims) is list else -1)", "x * sum(dims + (dims.append(5) or []))"),
    ),
    Family(
        "difference", f"x: {FLOAT}, y: {FLOAT}", "(Tensor x, Tensor y) -> Tensor", "x - y * 2", ("pair",),
        launchers=(
            "a, b = x.view(-1), y.view(-1)\nout = torch.empty_like(x)\n"
            "KERNELS['subtract'][blocks(x.numel()), BLOCK](a, b, out, x.numel())",
            "out = torch.empty_like(x)\nKERNELS['subtract'][blocks(x.numel()), BLOCK](x, y, out, x.numel())",
            "out = torch.empty_like(y)\ny = y.reshape(-1)\n"
            "KERNELS['subtract'][blocks(x.numel()), BLOCK](x.contiguous(), y, out, x.numel())",
            "out = torch.empty_like(x)\nif x is y:\n"
            "    KERNELS['scale'][blocks(x.numel()), BLOCK](x, out, 5.0, x.numel())\n"
            "else:\n    KERNELS['subtract'][blocks(x.numel()), BLOCK](x, y, out, x.numel())",
            "out = torch.empty_like(x)\nx = x.T.T if x.dim() == 2 else x.flatten()\ny = y[:]\n"
            "KERNELS['subtract'][blocks(x.numel()), BLOCK](x, y, out, x.numel())",
        ),
        backward=(f"x: {FLOAT}", "grad * x, -grad"),
    ),
    Family(
        "increased", f"x: Annotated[{FLOAT}, ow.mutated], k: int", "(Tensor(a!) x, int k) -> ()", "x.add_(k)",
        ("tensor", "int"), returns="None", mutated="x",
        launchers=("KERNELS['increase'][blocks(x.numel()), BLOCK](x, k, x.numel())",
                   "y = x.view(-1)\nKERNELS['increase'][blocks(x.numel()), BLOCK](y, k, x.numel())"),
    ),
    Family(
        "both", f"x: {FLOAT}, y: {FLOAT}", "(Tensor x, Tensor y) -> (Tensor, Tensor)", "(x * y, x + y)", ("pair",),
        returns=f"tuple[{FLOAT}, {FLOAT}]",
    ),
    Family(
        "saving", f"x: {FLOAT}, a: float = 2.0", "", "(x * a, x.exp())", ("tensor", "float"),
        returns=f"tuple[{FLOAT}, Annotated[{FLOAT}, ow.saved_for_backward]]", portable=False,
    ),
    Family(
        "product", 'x: Float[Tensor, "m k"], y: Float[Tensor, "k n"]', "(Tensor x, Tensor y) -> Tensor", "x @ y",
        ("product",), returns='Float[Tensor, "m n"]',
    ),
    Family(
        "summed", 'x: Float[Tensor, "m n"], a: float', "(Tensor x, float a) -> Tensor", _EXPRESSION_OF_SUM,
        ("tensor", "float"), returns='Float[Tensor, "m"]', kernels=(f"{_EXPRESSION_OF_SUM} * 1.0",),
    ),
)  # fmt: skip

# What a function of the user's may use besides its arguments. E is the expression.
_USES = (
    "{E}", "{E}", "helper({E})", "{E} * SCALE", "relu({E})", "F.silu({E})", "{E} * max(len(x.shape), 1)", "{E} * inner",
    "{E} * settings.scale", "{E} * TABLE['scale']", "torch.where(x > 0, {E}, {E} * 2)", "helper({E}, s=SCALE)",
    "{E} * (2.0 if torch.is_grad_enabled() else 1.0)", "{E} * torch.tensor(0.1)", "F.dropout({E}, 0.0)",
)  # fmt: skip
_ONLY_KERNELS = (
    "{E} * WEIGHT", "{E} if x.numel() else x", "x", "x[:]", "(lambda o: o.copy_({E}))(torch.empty_like(x))",
    "{E} if not bool((x > 1e3).any()) else {}['no such key']",
)  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A drawn operator: its definition, and the text of its functions."""

    family: Family
    definition: Definition
    source: str


def draw_operator(draw: random.Random, name: str) -> Drawn:
    """Draw an operator of any family. ``name`` is ``f`` or ``g``."""
    family = draw.choice(FAMILIES)
    if draw.random() < 0.4:  # half of what there is to go wrong is in launchers
        family = draw.choice([one for one in FAMILIES if one.launchers])
    kernel = draw.choice(("python", "python", "python", "none"))
    if family.launchers and draw.random() < 0.7:
        kernel = "cuda"
    gradient = draw.choice(("derived", "derived", "registered", "operator"))
    if family.mutated or not family.portable or (gradient == "operator" and not family.backward[0]):
        gradient = "derived"
    parts = [_reference(draw, family, name), _kernel(draw, family, name, kernel), _other_kernel(draw, family, name)]
    parts += [_registered_gradient(draw, family, name, each) for each in ("backward", "backward2")]
    parts += [_setups(draw, family, name), _backward_operator(family, name)]
    source = "\n\n".join(filter(None, parts)) + "\n"
    # ``custom_op`` saves the list that its kernel has got, with what that has written into it.
    portable = family.portable and gradient != "operator" and "append" not in source
    return Drawn(family, Definition(name, family.schema, kernel, gradient, family.mutated, portable), source)


def _used(draw: random.Random, expression: str, is_kernel: bool) -> str:
    choices = (*_USES, *_ONLY_KERNELS) if is_kernel else _USES
    if expression.startswith("(") and "," in expression and not is_kernel:  # several results
        first, rest = expression[1:-1].split(", ", 1)
        return f"({draw.choice(_USES).replace('{E}', f'({first})')}, {rest})"
    if expression.startswith(("(x * y,", "(x * a,")):
        return expression
    return draw.choice(choices).replace("{E}", f"({expression})")


def _function(draw: random.Random, name: str, signature: str, lines: list[str]) -> str:
    """A function, in a function of its own where it has a variable of that one."""
    text = "\n".join((f"def {name}{signature}:", *(f"    {line}" for line in lines)))
    if not any("inner" in line for line in lines):
        return text
    indented = "\n".join(f"    {line}" for line in text.splitlines())
    return f"def make_{name}(inner):\n{indented}\n    return {name}\n\n{name} = make_{name}(3.0)"


def _reference(draw: random.Random, family: Family, name: str) -> str:
    if family.mutated:
        return f"def reference_{name}({family.parameters}) -> None:\n    {family.expression}"
    lines = [f"return {_used(draw, family.expression, is_kernel=False)}"]
    return _function(draw, f"reference_{name}", f"({family.parameters}) -> {family.returns}", lines)


def _kernel(draw: random.Random, family: Family, name: str, kernel: str) -> str:
    names = ", ".join(family.names)
    if kernel == "cuda":
        body = draw.choice(family.launchers)
        lines = ["# a launcher", *body.splitlines(), *([] if family.mutated else ["return out"])]
        text = _function(draw, f"kernel_{name}", f"({names})", lines)
        return f"def factor():\n    return helper(SCALE)\n\n{text}"
    see = [f"seen({names})"] if draw.random() < 0.8 else []
    if family.mutated:
        lines = [*see, draw.choice((family.expression, f"{family.expression}; helper(x)"))]
    else:
        expression = draw.choice((family.expression, family.expression, *family.kernels))
        lines = [*see, f"return {_used(draw, expression, is_kernel=True)}"]
    return _function(draw, f"kernel_{name}", f"({names})", lines)


def _other_kernel(draw: random.Random, family: Family, name: str) -> str:
    names = ", ".join(family.names)
    lines = [f"seen({names})"]
    if family.mutated:
        lines += ["x.mul_(3)"]
    elif family.returns.startswith("tuple"):
        lines += [f"first, second = {family.expression}", "return first * 3, second"]
    else:
        lines += [f"return ({family.expression}) * 3"]
    return _function(draw, f"other_{name}", f"({names})", lines)


def _tensors_of(family: Family) -> list[int]:
    parts = family.schema.split(") ->")[0].strip("(").split(", ")
    return [i for i, part in enumerate(parts) if part.startswith("Tensor")]


def _setups(draw: random.Random, family: Family, name: str) -> str:
    """What ``setup_context`` saves, and another function that saves something else; half of them choose in each call.
    ``ctx.value`` is the first argument that is no tensor."""
    if family.mutated or not family.portable:
        return ""
    places = _tensors_of(family)
    tensors = ", ".join(f"inputs[{i}]" for i in places)
    others = [i for i in range(len(family.names)) if i not in places]
    value = f"inputs[{others[0]}]" if others else "2.0"
    if draw.random() < 0.5:
        value = f"{value} if len(inputs) > 1 and not isinstance(inputs[1], Tensor) else 2.0"
    return (
        f"def setup_{name}(ctx, inputs, output):\n    ctx.save_for_backward({tensors})\n    ctx.value = {value}\n\n"
        f"def setup2_{name}(ctx, inputs, output):\n    ctx.save_for_backward({tensors})\n    ctx.value = 7.0"
    )


def _registered_gradient(draw: random.Random, family: Family, name: str, part: str) -> str:
    if family.mutated or not family.portable:
        return ""
    factor = draw.choice(("SCALE", "3.0", "settings.scale", "helper(0.5)", "inner", "ctx.value", "ctx.value"))
    results = []
    for i in range(len(family.names)):
        if i not in _tensors_of(family):
            results.append("None")
            continue
        saved = f"saved[{_tensors_of(family).index(i)}]"
        usual = f"torch.sin({saved}.expand_as({saved})) * grad.sum() * {factor}"
        choices = (usual, usual, usual, "grad", "grad.detach()", f"{saved}.detach()", f"{saved}.detach().t()", saved)
        results.append(f"({draw.choice(choices)}) if {saved} is not None else None")
    lines = ["saved = ctx.saved_tensors", f"return {', '.join(results)}"]
    if part == "backward2":
        lines[1] = lines[1].replace("torch.sin", "7 * torch.cos")
    return _function(draw, f"{part}_{name}", "(ctx, grad)", lines)


def _backward_operator(family: Family, name: str) -> str:
    parameters, result = family.backward
    if not parameters:
        return ""
    returns = FLOAT if "," not in result else f"tuple[{FLOAT}, {FLOAT}]"
    return f"def backward_reference_{name}(grad: {FLOAT}, {parameters}) -> {returns}:\n    return {result}"
