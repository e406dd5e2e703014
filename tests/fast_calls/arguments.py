"""Draws arguments of calls, as text: views and aliases of a program's tensors, and numbers of many types."""

from __future__ import annotations

import random

from tests.fast_calls.families import Family

__all__ = ["draw_arguments"]

# Launchers treat memory as contiguous. Each tensor here has as many elements of memory from its address on as it has
# elements, so that no program touches memory of another tensor.
_TENSORS = (
    "x[0]", "x[i % 3]", "x[0]", "w[0]", "w[0]", "w[1]", "p", "x[1][1:]", "x[0].T", "x[0][::2]", "q[0]", "q[1]", "q[3]",
    "q.chunk(2, 1)[0]", "w[0][1:]", "w[0].T", "w[0] * 1.0", "x[0][:0]", "w[0][:0]", "x[0].double()", "x[0].half()",
    "w[0].double()", "nn.Parameter(x[1])", "x[2].clone()", "x[2].clone().requires_grad_()", "s", "x[0].to('meta')",
    "x[0].view(-1)", "x[1].view(-1)", "q[0:4, 0:3]", "q[4:8, 0:3]", "x[0][0]", "ones(i + 1, 3)", "x[0].int()",
    "ones(12)[:4].view(4, 1).expand(4, 3)", "x[0].to(torch.complex64)", "None", "x[0].numpy()",
)  # fmt: skip
_PLAIN_TENSORS = _TENSORS[:17]
# Two tensors of the same shape and dtype.
_PAIRS = (
    "x[0], x[1]", "x[1], x[2]", "x[0], x[0]", "*x[0].chunk(2)", "*x[1].chunk(2)", "*q.chunk(2)", "q[0], q[1]",
    "q[1], q[0]", "q[0], q[3]", "q[2], q[2]", "q[0:4], q[2:6]", "q[2:6], q[0:4]", "w[0], x[1]", "x[1], w[0]",
    "w[0], w[1]", "w[0], w[0]", "*w[0].chunk(2)", "p, x[0]", "x[0], p", "x[0].T, x[1].T", "q[0, :6], q[0, 6:]",
    "q[0, 6:], q[0, :6]",
    "x[0][:0], x[1][:0]", "x[0].double(), x[1].double()", "s, x[0]", "x[3].clone(), x[0].clone()",
    "x[0][:2], x[1][:2]", "x[0][:2], x[1][2:]", "x[0].view(12), q[5]", "x[0], x[i % 2]", "x[i % 2], x[1]",
)  # fmt: skip
_WRONG_PAIRS = ("x[0], x[1].double()", "x[0], x[1].T", "x[0], 2.0", "x[0]", "x[0], x[1], x[2]", "None, x[0]")
_PRODUCTS = (
    "x[0], x[1].T", "w[0], x[1].T", "x[0], w[0].T", "w[0], w[0].T", "x[1].T, x[0]", "x[0], ones(3, i + 1)",
    "w[0].T, w[1]", "x[0], x[1]", "x[0].double(), x[1].double().T",
)  # fmt: skip
_VALUES = {
    "float": (
        "2.0", "2.0", "0.5", "2", "1", "0.1 * i", "float(i)", "0.0", "-0.0", "float('nan')", "float('inf')", "True",
        "np.float64(2.0)", "np.float32(0.5)", "Half(2.0)", "np.int64(2)", "Count(2)", "Level.TWO", "'2'", "None",
        "torch.tensor(2.0)", "1e300", "2 ** 70",
    ),
    "int": (
        "1", "1", "2", "0", "-1", "i", "True", "False", "np.int64(2)", "Count(2)", "Level.TWO", "2.0", "None", "'1'",
        "2 ** 40", "2 ** 70", "torch.tensor(2)", "np.bool_(True)",
    ),
    "bool": ("True", "True", "False", "1", "0", "np.bool_(True)", "2", "1.0", "None", "i % 2 == 0", "Level.ONE"),
    "str": ("'up'", "'up'", "'down'", "Word('up')", "Word('down')", "''", "3", "None", "b'up'"),
    "dtype": ("torch.float32", "torch.float64", "'float32'", "6", "7", "None", "torch.int64", "np.dtype('float32')"),
    "device": ("torch.device('cpu')", "'cpu'", "torch.device('cpu', 0)", "'cpu:0'", "None", "0"),
    "ints": (
        "[1, 2]", "[1, 2]", "(1, 2)", "[1]", "[]", "[True, 2]", "torch.Size([1, 2])", "[np.int64(1), 2]", "1", "[1.0]",
        "[Level.TWO]", "None", "[i]", "range(2)",
    ),
}  # fmt: skip


def draw_arguments(draw: random.Random, family: Family, usual: bool = False) -> str:
    """The arguments of a call, as they stand between parentheses.

    Args:
        usual: those that most calls have.
    """
    texts = [_argument(draw, kind, usual) for kind in family.kinds]
    if family.kinds in (("pair",), ("product",)):
        return texts[0]
    if draw.random() < 0.15:
        names = family.names
        return ", ".join(f"{n}={t}" if i else t for i, (n, t) in enumerate(zip(names, texts, strict=True)))
    if draw.random() < 0.12:  # a default, or a missing argument
        texts.pop()
    return ", ".join(texts)


def _argument(draw: random.Random, kind: str, usual: bool) -> str:
    if kind == "tensor":
        return draw.choice(_TENSORS if draw.random() < 0.3 and not usual else _PLAIN_TENSORS)
    if kind == "pair":
        return draw.choice(_WRONG_PAIRS if draw.random() < 0.08 and not usual else _PAIRS)
    if kind == "product":
        return draw.choice(_PRODUCTS)
    if kind == "tensor?":
        return draw.choice(("None", "None", "x[1]", "w[1]", "x[i % 3]", "x[0]"))
    if kind == "float?":
        return draw.choice(("None", *_VALUES["float"][: 4 if usual else None]))
    values = _VALUES[kind]
    return draw.choice(values if draw.random() < 0.5 and not usual else values[:4])
