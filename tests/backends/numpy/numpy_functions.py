"""Every function that torch's NumPy layer claims, each run by NumPy and compiled: the table in docs/numpy.md.

``python -m tests.backends.numpy.numpy_functions`` prints it (some minutes, most of them in compilers; one with
``--trace``, which generates no code); ``--write`` puts it into the page.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch._numpy as tnp
from torch.utils import _pytree

import opwright as ow
from opwright.backends.numpy import tracing
from opwright.errors import OpwrightError
from tests import REPOSITORY

PAGE = REPOSITORY / "docs" / "numpy.md"
START, END = "<!-- table: start -->", "<!-- table: end -->"

_random = np.random.default_rng(0)
INPUTS: dict[str, Any] = {
    "x": np.array([0.5, -0.25, 0.75, 0.125, -0.5, 0.9]),
    "y": np.array([1.5, 2.0, -0.75, 0.5, 3.0, -1.0]),
    "p": np.array([1.5, 2.0, 1.75, 1.25, 3.0, 4.0]),
    "s": np.array([0.5, -0.25, 0.75], dtype=np.float32),
    "t": np.array([1.5, 2.0, -0.75], dtype=np.float32),
    "i": np.array([3, 1, 4, 1, 5, 9]),
    "j": np.array([2, 7, 1, 8, 2, 8], dtype=np.int32),
    "b": np.array([True, False, True, True, False, True]),
    "c": np.array([1 + 2j, 0.5 - 1j, -1 + 0.25j]),
    "X": _random.random((4, 3)),
    "Y": _random.random((4, 3)),
    "S": _random.random((4, 3)).astype(np.float32),
    "I": np.arange(12).reshape(3, 4),
    "A": _random.random((3, 3)) + 3 * np.eye(3),
    "H": np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 4.0]]),
}
_UNARY = {
    **dict.fromkeys(("bitwise_not", "invert"), "i j b"),
    **dict.fromkeys(("arccosh",), "p"),
    **dict.fromkeys(("log", "log10", "log1p", "log2", "sqrt"), "p i j"),
    **dict.fromkeys(("reciprocal",), "p s"),
    **dict.fromkeys(("arccos", "arcsin", "arctanh"), "x s"),
    **dict.fromkeys(("conj", "conjugate", "absolute", "square", "negative"), "x s i j c"),
}
_BINARY = {
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "gcd", "lcm"), "i,j i,i b,b"),
    **dict.fromkeys(("gcd", "lcm", "left_shift", "right_shift"), "i,j j,j i,2"),
    **dict.fromkeys(("ldexp",), "x,i"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), "x,y b,b i,j"),
    **dict.fromkeys(("matmul",), "X,X.T i,j s,t A,H"),
    **dict.fromkeys(("power", "float_power"), "p,x i,2 j,j s,2.0"),
    **dict.fromkeys(("nextafter", "heaviside"), "x,y s,t"),
}
# By name: expressions. Other functions are called with one array, and with an axis if they take one.
_CALLS: dict[str, str] = {
    "allclose": "x,y", "append": "x,y; X,Y,axis=0", "arange": "5; 1,9,2; 1.5; 2,dtype=np.float32",
    "argsort": "p; i; X,axis=0", "argwhere": "i>2", "array": "[1,2]; [1.5,2]; x; i,dtype=np.float32",
    "array_equal": "x,x; x,y", "array_equiv": "x,x", "array_split": "x,4", "around": "X,1; i", "asarray": "x; [1,2]",
    "average": "x; i; X,axis=0; X,weights=Y", "bartlett": "5", "bincount": "i; i,minlength=12", "blackman": "5",
    "broadcast_arrays": "A,s.astype(np.float64)", "broadcast_shapes": "(3,1),(1,4)", "broadcast_to": "s,(4,3)",
    "can_cast": "np.float32,np.float64", "choose": "i%2,[i,i*2]", "clip": "x,0,0.5; i,2,5; s,-0.1,0.2; j,None,4",
    "column_stack": "(x,y)", "common_type": "x,s[0]", "concatenate": "(x,y); (i,x); (X,Y),1",
    "convolve": "x,y; i,j; x,y,'same'", "copyto": "x.copy(),y", "corrcoef": "X; x,y", "correlate": "x,y; x,y,'full'",
    "count_nonzero": "i>2; X>0.5,axis=0", "cov": "X; x,y", "cross": "s,t; X,Y", "diag": "x; X; X,1",
    "diag_indices": "3", "diag_indices_from": "A", "diff": "x; X,axis=0; i; x,2", "dot": "x,y; X,A; i,j",
    "dsplit": "X[:,:,None]*np.ones(4),2", "dstack": "(x,y)", "einsum": "'ij,ij->i',X,Y; 'ij,jk',X,A; 'ii',A",
    "empty": "(2,0)", "empty_like": "X[:0]", "expand_dims": "x,0; X,(0,2)", "eye": "3; 3,4,1; 2,dtype=np.int32",
    "fill_diagonal": "A.copy(),0", "flip": "x; X,0; X,(0,1)", "from_dlpack": "x", "full": "(2,3),7; 3,1.5; 3,x[0]",
    "full_like": "X,7; i,2.5", "geomspace": "1,100,5", "gradient": "x; X; x,2.0; X,axis=1", "hamming": "5",
    "hanning": "5", "histogram": "x; x,5; x,np.array([0.0,0.5,1.0])", "histogram2d": "x,y,3", "histogramdd": "X,3",
    "hsplit": "X,3", "hstack": "(x,y); (X,Y)", "i0": "x", "identity": "3", "indices": "(2,3)", "inner": "x,y; X,Y",
    "isclose": "x,x+1e-9; x,y", "isscalar": "3", "issubdtype": "np.float32,np.floating", "kaiser": "5,2.0",
    "kron": "s,t; A,A", "linspace": "0,1,5; 0,10,4,endpoint=False", "logspace": "0,2,5",
    "meshgrid": "x,y; s,t,indexing='ij'", "min_scalar_type": "3", "moveaxis": "X,0,1",
    "nan_to_num": "np.log(np.abs(x)-0.5)", "ones": "3; (2,3),dtype=np.int32", "outer": "x,y; i,j",
    "pad": "x,2; X,1; X,((1,0),(0,2)),'constant',constant_values=3; x,2,'edge'",
    "percentile": "x,30; X,50,axis=0; i,50; x,[10,90]", "put": "x.copy(),[0,2],9.0",
    "put_along_axis": "X.copy(),np.argmax(X,1)[:,None],9.0,1", "quantile": "x,0.3; X,0.5,axis=0; x,[0.1,0.9]",
    "repeat": "x,2; X,2,axis=1; X,np.array([1,2,0,1]),axis=0", "reshape": "X,(3,4); X,-1", "resize": "X,(2,2)",
    "result_type": "x,s", "roll": "x,2; X,1,axis=0; X,(1,2),(0,1)", "rollaxis": "X,1", "rot90": "X; X,2",
    "round": "X,1; i", "row_stack": "(x,y)", "searchsorted": "np.sort(x),y; np.sort(x),y,'right'", "sinc": "x",
    "split": "x,3; x,[2,4]; X,2,axis=0", "stack": "(x,y); (X,Y),axis=1", "squeeze": "X[:,None]; X[None,:,None],0",
    "swapaxes": "X,0,1", "take": "x,i%6; X,[0,2],axis=1", "take_along_axis": "X,np.argsort(X,1),1",
    "tensordot": "X,Y.T,1; X,Y", "tile": "x,2; X,(2,1)", "transpose": "X; X,(1,0)", "tri": "3; 3,4,1",
    "tril_indices": "3", "tril_indices_from": "A", "triu_indices": "3", "triu_indices_from": "A",
    "unique": "i; i,return_counts=True; i,return_inverse=True", "vander": "s; s,2", "vdot": "x,y; c,c",
    "vsplit": "X,2", "vstack": "(x,y)", "where": "b,x,y; x>0,x,0.0; i>2,i,j; b", "zeros": "3; (2,3),dtype=np.float32",
    "cumsum": "x; i; j; X,axis=0", "cumprod": "x; i; j; X,axis=0",
    "sum": "x; i; j; b; s; X,axis=0; X,axis=(0,1); X,axis=1,keepdims=True", "prod": "x; i; j; s; X,axis=0",
    "diagflat": "x", "median": "x; X,axis=0; i", "trace": "A; I", "mean": "x; i; j; b; s; X,axis=0",
    "std": "x; i; s; X,axis=0; X,ddof=1", "var": "x; i; s; X,axis=0; X,ddof=1", "ptp": "x; X,axis=0",
    "sort": "x; i; X,axis=0", "all": "b; x>0; X>0.1,axis=0", "any": "b; x>0; X>0.9,axis=0",
    "argmax": "x; i; X,axis=0", "argmin": "x; i; X,axis=0", "angle": "c; x", "fix": "y", "real_if_close": "x",
    "nonzero": "i>2; X>0.5", "flatnonzero": "i>2", "diagonal": "A; X,1", "ndim": "X", "size": "X; X,0", "shape": "X",
    "triu": "X; A,1", "tril": "X; A,-1", "linalg.cholesky": "H", "linalg.cond": "A; A,1", "linalg.det": "A",
    "linalg.eig": "H", "linalg.eigh": "H", "linalg.eigvals": "H", "linalg.eigvalsh": "H", "linalg.inv": "A",
    "linalg.lstsq": "A,s.astype(np.float64)", "linalg.matrix_power": "A,3; A,-1", "linalg.matrix_rank": "A",
    "linalg.multi_dot": "[X,A,H]", "linalg.norm": "x; i; X; X,axis=0; X,1; X,ord=np.inf,axis=1; X,'fro'; s",
    "linalg.pinv": "X", "linalg.qr": "A", "linalg.slogdet": "A", "linalg.solve": "A,X.T",
    "linalg.svd": "A,compute_uv=False; S,compute_uv=False",
    "linalg.tensorinv": "A.reshape(3,1,3,1).transpose(0,1,2,3),2", "linalg.tensorsolve": "A,np.ones(3)",
    "fft.fftfreq": "6; 6,0.5", "fft.rfftfreq": "6", "fft.fft2": "X", "fft.ifft2": "X", "fft.rfft2": "X",
    "fft.irfft2": "X", "fft.fftn": "X", "fft.ifftn": "X", "fft.rfftn": "X", "fft.irfftn": "X",
    "fft.fft": "x; i; s; c", "fft.ifft": "x; c", "fft.fftshift": "x; X", "fft.ifftshift": "x; X",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """The result of all calls of one function: ``ok``, ``differs`` or ``fails``, with details."""

    name: str
    status: str
    how: str = ""
    calls: int = 0


def claimed() -> list[str]:
    """The functions that NumPy and torch's layer of it both have, by their path."""
    found = []
    for prefix, numpys, layers in (("", np, tnp), ("linalg.", np.linalg, tnp.linalg), ("fft.", np.fft, tnp.fft)):
        for name in sorted(set(dir(numpys)) & set(dir(layers))):
            value = getattr(numpys, name)
            if not name.startswith("_") and callable(value) and not isinstance(value, type):
                found.append(prefix + name)
    return found


def calls_of(name: str) -> list[str]:
    """The expressions that test a function."""
    value = getattr(np, name, None)
    if name in _CALLS:
        calls = [c.strip() for c in _CALLS[name].split(";")]
    elif isinstance(value, np.ufunc):
        operands = _UNARY.get(name, "x s i j") if value.nin == 1 else _BINARY.get(name, "x,y s,t i,j x,2 i,2.0 s,i[:3]")
        calls = operands.split()
    else:
        calls = ["X"]  # all others take it
    return [f"np.{name}({arguments})" for arguments in calls]


def examine(name: str) -> Finding:
    """Run each call of a function by NumPy, and traced by torch.compile; the first difference counts."""
    with traced_only():
        return _examine_each(name, calls_of(name))


def examine_generated(names: Sequence[str]) -> list[Finding]:
    """The same for several functions; those that agree are compiled besides, and compared again.

    They are compiled as one function, which takes a fraction of the time; where that is not right, one by one.
    """
    found = {name: examine(name) for name in names}
    right = [f.name for f in found.values() if f.status == "ok"]
    if _examine_call(_together(right))[0] != "ok":
        for name in right:
            status, how = _examine_call(_together([name]))
            if how:
                found[name] = Finding(name, status, f"generated code: {how}", found[name].calls)
    return list(found.values())


def _together(names: Sequence[str]) -> str:
    return f"({' '.join(f'{call},' for name in names for call in calls_of(name))})"


@contextlib.contextmanager
def traced_only() -> Iterator[None]:
    """Run what the tracer found by Python, without generating code."""
    generate, tracing.generate = tracing.generate, lambda graph, inputs: graph
    try:
        yield
    finally:
        tracing.generate = generate


def _examine_each(name: str, calls: list[str]) -> Finding:
    worst = Finding(name, "ok", calls=len(calls))
    for call in calls:
        status, how = _examine_call(call)
        if status == "fails" or (status == "differs" and worst.status == "ok"):
            worst = Finding(name, status, f"`{call.removeprefix('np.')}`: {how}", len(calls))
        if status == "fails":
            break
    return worst


def _examine_call(call: str) -> tuple[str, str]:
    used = [name for name in INPUTS if re.search(rf"(?<![\w.']){name}(?![\w'])", call)] or ["x"]
    scope: dict[str, Any] = {"np": np}
    exec(f"def called({', '.join(used)}):\n    return {call}\n", scope)
    arguments = [INPUTS[name] for name in used]
    with np.errstate(all="ignore"):
        expected = scope["called"](*(a.copy() for a in arguments))
    try:
        came = ow.compile_numpy(verify="never", mode="compiled")(scope["called"])(*(a.copy() for a in arguments))
    except (
        OpwrightError,
        RuntimeError,
        TypeError,
        ValueError,
        AttributeError,
        NotImplementedError,
        AssertionError,
    ) as e:
        return "fails", _short(e)
    return _compare(expected, came)


def _short(error: Exception) -> str:
    text = error.message if isinstance(error, OpwrightError) else str(error)
    text = re.sub(r"^.*?cannot be compiled whole( \(in .*?\))?: ", "", text).strip().splitlines()[0]
    text = re.sub(r"0x[0-9a-f]+|, used in .*?:\d+", "", text)
    text = re.sub(r"call_function <Wrapped function <original (\w+)>>.*", r"np.\1", text)
    return (text if isinstance(error, OpwrightError) else f"{type(error).__name__}: {text}")[:120]


def _compare(expected: Any, came: Any) -> tuple[str, str]:
    wanted, got = _pytree.tree_leaves(expected), _pytree.tree_leaves(came)
    if len(wanted) != len(got):
        return "differs", f"{len(got)} results, NumPy {len(wanted)}"
    for a, b in zip(wanted, got, strict=True):
        if not isinstance(a, np.ndarray | np.generic) and not isinstance(b, np.ndarray | np.generic):
            if a != b:
                return "differs", f"{b!r}, NumPy {a!r}"
            continue
        a, b = np.asarray(a), np.asarray(b)
        if a.dtype != b.dtype:
            return "differs", f"{b.dtype}, NumPy {a.dtype}"
        if a.shape != b.shape:
            return "differs", f"shape {list(b.shape)}, NumPy {list(a.shape)}"
        close = 1e-4 if a.dtype in (np.float32, np.complex64) else 1e-9
        if not np.allclose(a, b, rtol=close, atol=close, equal_nan=True):
            return "differs", "other values"
    return "ok", ""


def versions() -> str:
    return f"torch {torch.__version__.partition('+')[0]}, NumPy {np.__version__}"


def render(findings: list[Finding]) -> str:
    """The section of the page."""
    by = {s: [f for f in findings if f.status == s] for s in ("ok", "differs", "fails")}
    calls = sum(f.calls for f in findings)
    lines = [
        f"With {versions()}: of {len(findings)} functions ({calls} calls) **{len(by['ok'])} agree** with NumPy in",
        f"values and dtypes, {len(by['differs'])} differ, {len(by['fails'])} fail.",
        "",
        "**Agree:** " + ", ".join(f"`{f.name}`" for f in by["ok"]),
        "",
        "| function | | how |",
        "|---|---|---|",
        *(f"| `{f.name}` | {f.status} | {f.how.replace('|', chr(92) + '|')} |" for f in by["differs"] + by["fails"]),
    ]
    return "\n".join(lines)


def recorded() -> dict[str, tuple[str, str]]:
    """The page's status and notes for each function."""
    text = PAGE.read_text().partition(START)[2].partition(END)[0]
    agree = re.search(r"\*\*Agree:\*\* (.*)", text)
    found = dict.fromkeys(re.findall(r"`([\w.]+)`", agree.group(1)), ("ok", "")) if agree else {}
    for name, status, how in re.findall(r"(?m)^\| `([\w.]+)` \| (differs|fails) \| (.*) \|$", text):
        found[name] = (status, how.replace("\\|", "|"))
    return found


def recorded_versions() -> str:
    found = re.search(r"With (torch \S+, NumPy \S+):", PAGE.read_text())
    return found.group(1) if found else ""


def examined(*, generate: bool) -> Iterator[Finding]:
    for names in batches():
        for finding in examine_generated(names) if generate else map(examine, names):
            print(finding, file=sys.stderr)
            yield finding


def batches(size: int = 12) -> list[list[str]]:
    """Every function, in groups that are compiled together."""
    names = claimed()
    return [names[i : i + size] for i in range(0, len(names), size)]


if __name__ == "__main__":
    table = render(list(examined(generate="--trace" not in sys.argv)))
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(START)
        PAGE.write_text(f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}")
    else:
        print(table)
