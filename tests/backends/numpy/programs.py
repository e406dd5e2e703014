# ruff: noqa: E501  # tables of statements
"""Programs of NumPy statements, drawn by Hypothesis: indexing, views, writes, reductions, dtypes.

``python -m tests.backends.numpy.programs 10000`` draws so many, and counts those that are compiled and the same as
NumPy on two calls, refused, or silently different. ``--generate`` generates code for each; without it, traced graphs run
in Python. ``--steps`` runs them step by step, as references of operators run, without torch.compile.
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import time
from typing import Any

import hypothesis
import numpy as np
import torch
from hypothesis import strategies as st

import opwright as ow
from opwright.backends.numpy import tracing
from opwright.contract.numpy.array import Array, numpy_on_tensors
from opwright.contract.numpy.comparison import copied, difference, tolerance_of
from opwright.contract.reference import replace_globals
from opwright.errors import OpwrightError

# Arguments: vectors of 6 (float64, float32, int64, uint8) and a matrix of 4 × 6.
ARGUMENTS = "v, w, k, u, m"
_VECTORS = (
    "{v} + {v}", "{v} - {v}", "{v} * {v}", "{v} * {s}", "{v} - {s}", "{s} + {v}", "-{v}", "+{v}", "{v}[::-1]", "{v}.copy()",
    "{v}.flatten()", "{v}.ravel()", "np.asarray({v})", "np.array({v})", "{m}[1]", "{m}[{i}]", "np.where({v} > {s}, {v}, {v})",
    "np.where({v} > 1, {v}, 0)", "np.sort({v})", "np.cumsum({v})", "np.cumprod({v})", "{v}.astype({d})", "{m}.sum(0)",
    "{m}.max(axis=0)", "{m}.mean(0)", "np.maximum({v}, {v})", "np.minimum({v}, {s})", "{v} // 2", "{v} % 3", "{v} // {v}",
    "{v} % {v}", "{v} / 2", "{v} / {v}", "{v} ** 2", "{v}[{x}]", "np.roll({v}, 2)", "np.clip({v}, 1, 4)",
    "np.concatenate([{h}, {h}])", "np.flip({v})", "{v}.reshape(2, 3).T.ravel()", "{v}.reshape(3, 2)[:, 0].repeat(2)",
    "np.abs({v})", "np.sign({v})", "np.square({v})", "np.rint({v})", "np.floor({v} / 2)", "np.tile({h}, 2)", "np.zeros(6)",
    "np.arange(6)", "np.ones_like({v})", "np.full(6, {s})", "{v} > {v}", "({v} > 1) & ({v} < 4)", "np.argsort({v}, kind='stable')",
    "{v}[{b}].sum() + {v}", "np.sqrt(np.abs({v}))", "np.exp(-np.abs({v}))", "np.add({v}, {v})", "np.true_divide({v}, 4)",
    "{v}.real", "np.diag({m}[:, :4]).repeat(2)[:6]", "{m}[:, 2].repeat(2)[:6]", "np.where({b}, {s}, {v})", "{v}.T",
    "np.squeeze({v}[None])", "{v}[None, :][0]", "np.fmod({v}, 3)", "np.isnan({v})", "~({v} > 2)", "np.rot90({m})[0].repeat(2)[:6]",
)  # fmt: skip
_NUMBERS = (
    "{v}[{i}]", "{m}[{i}, 2]", "{v}[-1]", "np.sum({v})", "{v}.max()", "{v}.min()", "np.argmax({v})", "{s} + {s}", "{s} * 2",
    "{v}.mean()", "np.prod({v}[:2])", "{v}[{i}] + 1", "np.any({v} > 2)", "np.median({v})", "{v}.std()", "np.dot({v}, {v})",
    "len({v})", "2", "0.5", "np.float32(1.5)", "{v}[{i}] * {v}[{i}]", "{m}.sum()", "np.count_nonzero({v})", "np.ptp({v})",
    "{v}[np.argmin({v})]", "np.abs({s})", "np.array({s})", "{v}[{i}, ...]", "np.square({s})",
)  # fmt: skip
_HALVES = ("{v}[:3]", "{v}[3:]", "{v}[::2]", "{v}[1::2]", "{v}[::-2]", "{v}[5:2:-1]", "{h} + {h}", "{v}[[0, 2, 4]]", "{h}.copy()", "{v}[1:4]")  # fmt: skip
_MATRICES = (
    "{m} * {s}", "{m} + {v}", "{m}[::-1]", "{m}[:, ::-1]", "{m}.reshape(6, 4).T.reshape(4, 6)", "{m}[[1, 0, 3, 2]]", "{m}.T.copy().T",
    "np.outer({v}[:4], {v})", "np.where({m} > 1, {m}, 0)", "{m}.copy()", "np.stack([{v}, {v}, {v}, {v}])", "np.cumsum({m}, axis=1)",
    "{m} - {m}.mean(axis=1, keepdims=True)", "np.sort({m}, axis=0)", "np.roll({m}, 1, axis=1)", "{m}.astype({d})", "np.flipud({m})",
    "{m}[:, {x}]", "np.maximum({m}, {v})", "{m}.T.T", "np.swapaxes(np.swapaxes({m}, 0, 1), 0, 1)", "{m} @ np.eye(6)",
    "np.subtract.outer({v}[:4], {v})", "{m} - np.add.reduce({m})",
)  # fmt: skip
_STATEMENTS = (
    "np.add.at({V}, [0, {i}, 0], {v}[:3])", "np.maximum.at({V}, {x}, {s})", "np.multiply.at({M}, (slice(None), {i}), 2)",
    "{V}[{i}] = {s}", "{V}[{i}] = {v}[{i}]", "{V}[{i}] += {s}", "{V}[:3] = {h}", "{V}[3:] = {V}[:3]", "{V}[1:] = {V}[:-1]",
    "{V} += {v}", "{V} *= 2", "{V} -= {s}", "{V} += {V}[::-1]", "{V}[::2] += {h}", "{V}[::-1] = {v}", "{V}[:] = {v}", "{V}[...] = {s}",
    "{V}[{b}] = {s}", "{V}[{b}] += 1", "{V}[{x}] = {v}", "{V}[[0, 1]] = {V}[[1, 0]]", "{V}[0], {V}[1] = {V}[1], {V}[0]",
    "np.add({V}, {v}, out={V})", "np.multiply({v}, 2, out={V}, where={b})", "{V}.sort()", "{V}.fill({s})", "{M}[{i}] = {v}",
    "{M}[{i}] += {v}", "{M}[:, 2] = 7", "{M}[:, ::2] *= 2", "{M}.T[2] = 5", "{M}[0], {M}[1] = {M}[1], {M}[0]", "{M}[{i}, 2] = {s}",
    "{M}[::-1] = {m}", "{M}.ravel()[3] = {s}", "{M}.reshape(6, 4)[1] = 3", "{M}[1:] -= {M}[:-1]", "np.fill_diagonal({M}, 3)",
    "{S} += {s}", "{S} *= 3", "{S} = {V}[0]\n    {V}[0] = {V}[1]\n    {V}[1] = {S}", "for row in {M}:\n        row += row[0]",
    "for q in range(1, 6):\n        {V}[q] = {V}[q - 1] + {V}[q]", "for q in {V}[:3]:\n        {S} = {S} + q", "{V}[np.argmax({V})] = 0",
    "{V} /= 2", "{V} //= 2", "{V} **= 2", "{V}.flatten()[0] = 9", "{V}.ravel()[0] = 9", "{V}.reshape(2, 3)[0] = {h}", "{V}.view()[0] = 1",
)  # fmt: skip


@st.composite
def programs(draw: Any) -> str:
    """The text of a function of the arguments, which returns all its variables."""
    names = {"v": ["v", "w", "k", "u"], "m": ["m"], "s": ["s0"], "h": []}
    lines = ["s0 = v[2]"]

    def fill(template: str, depth: int) -> str:
        text = template
        while "{" in text:
            start = text.index("{")
            text = text[:start] + part(text[start + 1], depth) + text[start + 3 :]
        return text

    def part(kind: str, depth: int) -> str:
        if kind in "VMS":
            return str(draw(st.sampled_from(names[kind.lower()])))
        if kind in _FIXED:
            return str(draw(st.sampled_from(_FIXED[kind])))
        if names[kind] and (depth >= 1 or draw(st.integers(0, 2))):
            return str(draw(st.sampled_from(names[kind])))
        return f"({fill(draw(st.sampled_from(_TEMPLATES[kind])), depth + 1)})"

    for number in range(draw(st.integers(2, 7))):
        if draw(st.booleans()):
            lines.append(fill(draw(st.sampled_from(_STATEMENTS)), 0))
        else:
            kind = draw(st.sampled_from("vvvsmh"))
            name = f"{kind}{number + 1}"
            lines.append(f"{name} = {fill(draw(st.sampled_from(_TEMPLATES[kind])), 0)}")
            names[kind].append(name)
    made = [name for each in names.values() for name in each if name not in ARGUMENTS.split(", ")]
    body = "\n    ".join(lines)
    return f"def program({ARGUMENTS}):\n    {body}\n    return {', '.join(f'({name}) + 0' for name in made)}, v.sum()\n"


_TEMPLATES = {"v": _VECTORS, "s": _NUMBERS, "h": _HALVES, "m": _MATRICES}
_FIXED = {
    "i": ("0", "1", "2", "3", "-1", "-2"),
    "x": ("[0, 2, 1, 5, 4, 3]", "np.array([5, 4, 3, 2, 1, 0])", "k % 6"),
    "b": ("v > 1", "k > 2", "np.array([True, False, True, True, False, False])"),
    "d": ("np.float32", "np.int64", "np.float64", "np.uint8", "v.dtype", "bool"),
}


def arguments(call: int) -> tuple[Any, ...]:
    """The arguments of a first and of a second call."""
    if call == 0:
        v, w = np.array([3.0, 1.0, 2.0, 5.0, 0.5, 4.0]), np.array([1.5, 0.25, 2.0, 3.0, 4.5, 0.75], np.float32)
        return (
            v,
            w,
            np.array([3, 1, 4, 2, 5, 6]),
            np.array([200, 100, 7, 1, 2, 3], np.uint8),
            np.arange(24.0).reshape(4, 6) / 4,
        )
    v, w = np.array([-1.0, 2.5, 0.0, 7.0, -3.0, 1.0]), np.array([0.5, -2.0, 8.0, 0.0, 1.0, -1.0], np.float32)
    return (
        v,
        w,
        np.array([0, -4, 9, 2, 1, 3]),
        np.array([255, 0, 255, 4, 9, 128], np.uint8),
        5 - np.arange(24.0).reshape(4, 6),
    )


def function_of(program: str) -> Any:
    scope: dict[str, Any] = {"np": np}
    exec(compile(program, "<program>", "exec"), scope)
    return scope["program"]


def _outcome(function: Any, values: tuple[Any, ...]) -> Any:
    try:
        with np.errstate(all="ignore"):
            return copied(function(*values)), copied(list(values))
    except (OpwrightError, NotImplementedError):
        raise
    except Exception as error:
        return error


def verdict(program: str) -> str:
    """``same``, ``same but for rounding``, ``raises as NumPy``, ``refused``, or ``silently different: …``.

    Rounding is that of float32, the coarsest dtype of an argument, in numbers that end in an array of float64.
    The first call compares and may refuse; the second is compiled code alone, on other values.
    """
    function = function_of(program)
    return verdict_of_calls(function, ow.compile_numpy(mode="compiled")(function), [arguments(0), arguments(1)])


def verdict_of_calls(function: Any, compiled: Any, calls: list[tuple[Any, ...]]) -> str:
    """The same of one compiled function, for calls with these arguments one after the other."""
    found = "same"
    for number, values in enumerate(calls):
        expected = _outcome(function, copy.deepcopy(values))
        try:
            came = _outcome(compiled, values)
        except OpwrightError as error:
            return "refused by comparison" if "gives something else" in str(error) else "refused"
        if isinstance(expected, Exception) or isinstance(came, Exception):
            if type(expected) is not type(came):
                return f"silently different: {came!r}, NumPy {expected!r}"
            found = "raises as NumPy"
        elif what := difference(list(expected), list(came)):
            if difference(list(expected), list(came), coarsest=tolerance_of(values)):
                return f"silently different: call {number}: {what}"
            found = "same but for rounding"
    return found


def verdict_of_steps(program: str) -> str:
    """The same for steps on tensors without a comparison, as references run in autograd and vmap."""
    function = function_of(program)
    on_tensors = replace_globals(function, numpy_on_tensors())

    def run(*values: Any) -> Any:
        tensors = [Array(torch.from_numpy(value)) for value in values]
        return tuple(r.tensor.numpy() if isinstance(r, Array) else np.asarray(r) for r in on_tensors(*tensors))

    values = arguments(0)
    expected = _outcome(function, copy.deepcopy(values))
    try:
        came = _outcome(run, values)
    except NotImplementedError:
        return "refused"
    if isinstance(expected, Exception):
        return "raises as NumPy" if isinstance(came, Exception) else f"silently different: NumPy {expected!r}"
    if isinstance(came, Exception):
        return f"refused by {type(came).__name__}"
    what = difference(list(expected), list(came), classes=False)
    return f"silently different: {what}" if what else "same"


def count(number: int, *, generate: bool = False, steps: bool = False) -> dict[str, Any]:
    """The verdicts of so many programs, and the programs that are silently different."""
    verdicts: collections.Counter[str] = collections.Counter()
    different: list[dict[str, str]] = []
    if not generate:
        tracing.generate = lambda graph, inputs: graph

    @hypothesis.settings(
        max_examples=number, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.seed(20)
    @hypothesis.given(programs())
    def run(program: str) -> None:
        found = verdict_of_steps(program) if steps else verdict(program)
        verdicts[found.partition(":")[0]] += 1
        if found.startswith("silently"):
            different.append({"program": program, "how": found})
        if sum(verdicts.values()) % 200 == 0:
            torch.compiler.reset()

    run()
    return {"programs": sum(verdicts.values()), "verdicts": dict(verdicts), "silently_different": different}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", type=int)
    parser.add_argument("--generate", action="store_true", help="generate code for each")
    parser.add_argument("--steps", action="store_true", help="run them step by step on tensors")
    parser.add_argument("-o", "--output", help="write the counts to this file")
    options = parser.parse_args()
    start = time.perf_counter()
    record = count(options.number, generate=options.generate, steps=options.steps)
    record |= {"seconds": round(time.perf_counter() - start, 1), "torch": torch.__version__, "numpy": np.__version__}
    record |= {"hypothesis": hypothesis.__version__, "generated": options.generate, "steps": options.steps}
    text = json.dumps(record, indent=2)
    print(text)
    if options.output:
        with open(options.output, "w") as file:
            file.write(text + "\n")
