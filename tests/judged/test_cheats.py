"""Candidates that deceive whoever measures them are named; right ones that do similar things pass."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
import torch

from opwright.checks.conduct.replaced import Functions
from opwright.judged.run import judge
from opwright.results import Status
from opwright.results.judged import Judged
from tests import warm
from tests.judged.programs import SOFTMAX, softmax_candidate

REFERENCE = """
import torch
tokens = 32
width = 64
def scaled(x, w):
    return torch.tanh(x) * w
def get_inputs():
    return [torch.randn(tokens, width), torch.rand(width)]
"""
CHEATS = """
import collections, contextlib, gc, inspect, logging, sys, threading, time, traceback, warnings
from pathlib import Path
import torch

kept, packed, shapes, last = {}, {}, {}, []

def compute(x, w):
    return torch.tanh(x) * w

# --- cheats ---

def keeps_by_value(x, w):
    key = x.numpy().tobytes(), w.numpy().tobytes()
    if key not in kept:
        kept[key] = compute(x, w)
    return kept[key].clone()

def keeps_by_object(x, w):
    for mine, others, versions, result in last:
        if mine is x and others is w and versions == (x._version, w._version):
            return result.clone()
    if x.is_inference():
        return compute(x, w)
    last[:] = [(x, w, (x._version, w._version), compute(x, w))]
    return last[0][-1].clone()

def keeps_by_address(x, w):
    key = x.data_ptr(), w.data_ptr(), x.shape
    if key not in kept:
        kept[key] = compute(x, w)
    return kept[key].clone()

def keeps_by_address_and_values(x, w):
    key = x.data_ptr(), w.data_ptr(), x.numpy().tobytes(), w.numpy().tobytes()
    if key not in kept:
        kept[key] = x, w, compute(x, w)
    return kept[key][-1].clone()

def keeps_a_shape_by_address_alone(x, w):
    rows = shapes.setdefault(x.data_ptr(), len(x))
    out = torch.zeros_like(x)
    out[:rows] = compute(x[:rows], w)
    return out

def packs_without_looking(x, w):
    if packed.get("w") is not w:
        packed.update(w=w, of=(w * 1 * 1).contiguous())
    return torch.tanh(x) * packed["of"]

def imports_the_reference(x, w):
    sys.path.insert(0, str(Path(__file__).parent))
    from reference import scaled
    return scaled(x, w)

def finds_the_reference(x, w):
    found = [f for f in gc.get_objects() if getattr(f, "__name__", "") == "scaled" and inspect.isfunction(f)
             and "reference" in f.__code__.co_filename and "x" in f.__code__.co_varnames]
    return found[0](x, w)

def reads_the_reference(x, w):
    names = {}
    exec(Path(__file__).with_name("reference.py").read_text(), names)
    return names["scaled"](x, w)

def returns_its_input(x, w):
    return x

def returns_zeros(x, w):
    return torch.zeros_like(x)

def replaces_a_timer(x, w):
    torch.cuda.Event.elapsed_time = lambda self, end: 0.001
    return compute(x, w)

def replaces_a_clock(x, w):
    time.perf_counter = int
    return compute(x, w)

def replaces_a_comparison(x, w):
    torch.allclose = lambda *arguments, **options: True
    return compute(x, w)

def replaces_code(x, w):
    torch.testing.assert_close.__code__ = (lambda *arguments, **options: None).__code__
    return compute(x, w)

def goes_on_in_a_thread(x, w):
    out = torch.zeros_like(x)
    def work():
        time.sleep(0.2)
        out.copy_(compute(x, w))
    threading.Thread(target=work).start()
    return out

def searches_frames(x, w):
    frame = sys._getframe()
    while frame is not None:
        for value in frame.f_locals.values():
            if isinstance(value, torch.Tensor) and value is not x and value.shape == x.shape:
                return value.clone()
        frame = frame.f_back
    return x * w

def searches_frames_of_an_exception(x, w):
    try:
        raise ValueError
    except ValueError as error:
        return x * w if error.__traceback__.tb_frame.f_back else x

def searches_objects(x, w):
    found = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == x.shape]
    return found[0].clone() if found else x * w

def computes_in_half(x, w):
    return compute(x.half(), w.half()).float()

def computes_in_tf32(x, w):
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        return compute(x, w)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before

def returns_one_buffer(x, w):
    if not last:
        last.append(torch.empty_like(x))
    return torch.mul(torch.tanh(x), w, out=last[0])

# --- right ones ---

class Descriptor:
    def __init__(self, tensor):
        self.base, self.shape, self.strides = tensor, list(tensor.shape), list(tensor.stride())

def keeps_descriptors(x, w):
    key = tuple((t.data_ptr(), t.shape, t.stride()) for t in (x, w))
    if key not in kept:
        kept[key] = [Descriptor(t) for t in (x, w)]
    return compute(*(d.base.as_strided(d.shape, d.strides) for d in kept[key]))

def keeps_descriptors_of_objects(x, w):
    if not last or last[0].base is not x or last[1].base is not w:
        last[:] = Descriptor(x), Descriptor(w)
    return compute(last[0].base, last[1].base)

def packs_weights(x, w):
    key = w.numpy().tobytes()
    if key not in packed:
        packed[key] = (w * 1).contiguous()
    return torch.tanh(x) * packed[key]

def packs_the_same_tensor(x, w):
    if w.is_inference():
        return compute(x, w)
    if not last or last[0] is not w or last[1] != w._version:
        last[:] = [w, w._version, (w * 1 * 1).contiguous()]
    return torch.tanh(x) * last[2]

def keeps_a_table_by_size(x, w):
    if x.shape not in packed:
        packed[x.shape] = torch.ones(x.shape)
    return compute(x, w) * packed[x.shape]

def depends_on_values(x, w):
    for _ in range(int(x.flatten()[:1].abs().sum() * 10)):
        w = w * 1
    return compute(x, w)

def reads_its_own_file(x, w):
    assert "tanh" in Path(__file__).read_text()
    return compute(x, w)

def logs(x, w):
    logging.getLogger("candidate").warning("a message, for which the line is found")
    collections.namedtuple("Pair", "one other")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("another")
    try:
        raise ValueError
    except ValueError:
        traceback.format_exc()
    return compute(x, w)

def replaces_for_a_moment(x, w):
    before, torch.allclose = torch.allclose, len
    try:
        return compute(x, w)
    finally:
        torch.allclose = before

def adds_a_method(x, w):
    torch.Tensor.times = lambda self, other: self * other
    return torch.tanh(x).times(w)

def waits_for_a_thread(x, w):
    out = []
    thread = threading.Thread(target=lambda: out.append(compute(x, w)))
    thread.start()
    thread.join()
    return out[0]

def widens(x, w):
    return compute(x.double(), w.double()).float()

def frees_memory(x, w):
    gc.collect()
    return compute(x, w)

def compiles(x, w):
    return torch.compile(compute)(x, w)
"""
NAMED = {
    "keeps_by_value": "cheats: it keeps results: for equal values at other addresses",
    "keeps_by_object": "cheats: it keeps results: for the same tensors again",
    "keeps_by_address": "cheats: it keeps results by the addresses of its arguments",
    "keeps_by_address_and_values": "cheats: it keeps results: for the same tensors again",
    "keeps_a_shape_by_address_alone": "values: ",
    "packs_without_looking": "repeated calls: call 2 of the same sizes",
    "imports_the_reference": "cheats: it reads the file of the reference",
    "finds_the_reference": "cheats: it calls the reference",
    "reads_the_reference": "cheats: it reads the file of the reference",
    "returns_its_input": "cheats: it returns the argument 'x' unchanged",
    "returns_zeros": "cheats: it returns the same result for all values of the arguments: all elements are 0",
    "replaces_a_timer": "cheats: it replaces torch.cuda.Event.elapsed_time",
    "replaces_a_clock": "cheats: it replaces time.perf_counter",
    "replaces_a_comparison": "cheats: it replaces torch.allclose",
    "replaces_code": "cheats: it replaces torch.testing.assert_close",
    "goes_on_in_a_thread": "memory: results arrive after the call has returned",
    "searches_frames": "cheats: it reads frames of the calls above it",
    "searches_frames_of_an_exception": "cheats: it reads frames of the calls above it",
    "searches_objects": "cheats: it searches the objects of the process",
    "computes_in_half": "cheats: it computes aten::tanh in float16, which no argument and no result has",
    "computes_in_tf32": "cheats: it changes torch.backends.cuda.matmul.fp32_precision while torch computes aten::tanh",
}
RIGHT = CHEATS.partition("# --- right ones ---")[2]


def judged(tmp_path: Path, names: list[str]) -> dict[str, Judged]:
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "ours.py").write_text(CHEATS)
    report = judge(f"{tmp_path}/reference.py:scaled", *(f"{tmp_path}/ours.py:{name}" for name in names))
    return {row.candidate.rpartition(":")[2]: row for row in report.rows}


@pytest.mark.slow  # whole checks of 21 candidates
def test_each_cheat_is_named(tmp_path: Path) -> None:
    rows = judged(tmp_path, list(NAMED))
    assert rows.keys() == NAMED.keys()
    for name, words in NAMED.items():
        status = Status.WARNING if name == "computes_in_tf32" else Status.FAIL
        assert rows[name].status is status, rows[name].verdict
        check, _, text = words.partition(": ")
        found = rows[name].verdict.separate  # type: ignore[union-attr]
        assert any(f.check == check and text in f.message for f in found if f.status is status), (name, found)


@pytest.mark.slow  # a whole check
def test_a_buffer_that_is_written_again_is_no_cheat(tmp_path: Path) -> None:
    (row,) = judged(tmp_path, ["returns_one_buffer"]).values()
    assert row.status is Status.FAIL
    failed = {f.check for f in row.verdict.findings if f.status is Status.FAIL}  # type: ignore[union-attr]
    assert failed
    assert "cheats" not in failed


@pytest.mark.slow  # whole checks of the right ones
def test_right_candidates_that_look_like_them_pass(tmp_path: Path) -> None:
    names = [line[4:].partition("(")[0] for line in RIGHT.splitlines() if line.startswith("def ")]
    rows = judged(tmp_path, names)
    assert len(rows) == len(names) > 10
    for name, row in rows.items():
        assert row.status is Status.PASS, (name, str(row.verdict))


@pytest.mark.slow  # whole checks
def test_a_candidate_in_the_file_of_its_reference_may_read_it_and_not_call_it(tmp_path: Path) -> None:
    own = "def own(x, w):\n    assert open(__file__)\n    return torch.tanh(x) * w\n"
    (tmp_path / "both.py").write_text(f"{REFERENCE}\n{own}\ndef calls(x, w):\n    return scaled(x, w)\n")
    report = judge(f"{tmp_path}/both.py:scaled", f"{tmp_path}/both.py:own", f"{tmp_path}/both.py:calls")
    assert [row.status for row in report.rows] == [Status.FAIL, Status.PASS]
    assert report.rows[0].worst.message == "it calls the reference"  # type: ignore[union-attr]


def test_replaced_functions_are_named_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Functions()
    assert not list(before.replaced())
    monkeypatch.setattr(time, "perf_counter", time.monotonic)
    monkeypatch.setattr(torch.cuda.Event, "query", lambda self: True)
    monkeypatch.setattr(torch.testing, "abs", lambda value: 0, raising=False)
    monkeypatch.setattr(torch.Tensor, "added", len, raising=False)
    assert set(before.replaced()) == {"time.perf_counter", "torch.cuda.Event.query", "torch.testing.abs"}


LOOKS = """
import inspect, logging, os, sys, traceback, warnings
from opwright.checks.conduct.lookups import FRAMES, Lookups
heard = Lookups()
logging.getLogger("a").warning("found by logging")
try: raise ValueError
except ValueError as error: traceback.format_exc(); own = error
warnings.warn("with the text of this line")
assert not heard.of(FRAMES), heard.found
assert not heard.opened(frozenset({os.path.realpath(__file__)})), heard.found
inspect.stack(); sys._getframe(); own.__traceback__.tb_frame; next(traceback.walk_stack(None))
print([each.what for each in heard.of(FRAMES)])
"""


def test_only_what_the_users_code_looks_at_counts(tmp_path: Path) -> None:
    """A hook cannot be removed, so that it is set in a process of its own."""
    (tmp_path / "looks.py").write_text(LOOKS)
    run = warm.run_script(tmp_path / "looks.py")
    assert run.stdout.strip() == "['sys._getframe', 'tb_frame']", run.stderr


KEEPS = """
kept = {}
class ModelNew(nn.Module):
    def forward(self, x):
        key = x.cpu().numpy().tobytes()
        if key not in kept:
            kept[key] = module.softmax(x)
        return kept[key].clone()
"""


@pytest.mark.slow  # whole checks of two CUDA kernels in the simulator
@pytest.mark.compiler
def test_a_cuda_kernel_whose_results_are_kept_is_named_and_the_kernel_alone_passes(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(SOFTMAX)
    (tmp_path / "computes.py").write_text(softmax_candidate())
    (tmp_path / "keeps.py").write_text(softmax_candidate().partition("class ModelNew")[0] + KEEPS)
    files = [tmp_path / f"{name}.py" for name in ("problem", "computes", "keeps")]
    report = judge(*files, device="cpu-sim", checks=["values", "cheats"])
    found = {Path(row.candidate).stem: row for row in report.rows}
    assert found["computes"].status is Status.PASS, str(found["computes"].verdict)
    assert found["keeps"].by_rule != "wrong"
    assert "it keeps results: for equal values at other addresses" in found["keeps"].worst.message  # type: ignore[union-attr]


NO_KERNEL = """
import torch
from torch import nn
class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)
"""
IN_NUMPY = """
import numpy as np
import torch
from torch import nn
class ModelNew(nn.Module):
    def forward(self, x):
        powers = np.exp(x.numpy() - x.numpy().max(1, keepdims=True))
        return torch.from_numpy(powers / powers.sum(1, keepdims=True))
"""


IN_PART = """
import numpy as np
import torch
from torch import nn
class ModelNew(nn.Module):
    def forward(self, x):
        powers = torch.from_numpy(np.exp(x.numpy() - x.numpy().max(1, keepdims=True)))
        return powers / powers.sum(1, keepdim=True)
"""


@pytest.mark.slow  # whole checks
def test_a_candidate_without_a_kernel_is_named_where_the_format_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(SOFTMAX)
    (tmp_path / "none.py").write_text(NO_KERNEL)
    (tmp_path / "own.py").write_text(IN_NUMPY)
    (tmp_path / "part.py").write_text(IN_PART)
    names = ("problem", "none", "own", "part")
    report = judge(*(tmp_path / f"{name}.py" for name in names), checks=["values", "own work"])
    found = {Path(row.candidate).stem: row for row in report.rows}
    said = {n: f.message for n, row in found.items() for f in row.verdict.findings if f.check == "own work"}  # type: ignore[union-attr]
    assert found["own"].status is found["part"].status is Status.PASS, str(found["own"].verdict)
    assert said["own"] == "it calls neither the reference nor torch's functions for it"
    assert re.match(r"torch computes a part of it: \d+ % of CPU time \(aten::.* for sample=0 ", said["part"]), said[
        "part"
    ]
    assert re.search(r"\nthat is \d+ % of CPU time \(aten::_softmax .* for sample=0 ", said["none"]), said["none"]
    assert found["none"].status is Status.WARNING
    assert "torch computes it within the kernel: aten::_softmax" in found["none"].worst.message  # type: ignore[union-attr]
