"""What a candidate may keep between its calls, and what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from opwright.judged.run import judge
from opwright.results import Finding, Status
from opwright.results.judged import Judged

REFERENCE = """
import torch
tokens = 32
width = 64
def scaled(x, w, v):
    return torch.tanh(x) * w + v
def get_inputs():
    return [torch.randn(tokens, width), torch.rand(width), torch.rand(width)]
"""
CANDIDATES = """
import torch

kept, last, calls, seen, turn = {}, [], {}, {}, [0]

def compute(x, w, v):
    return torch.tanh(x) * w + v

def key_of(*tensors):
    return tuple((t.data_ptr(), t._version, t.shape) for t in tensors)

# --- cheats ---

def keeps_by_a_few_elements(x, w, v):
    key = float(x[0, 0]), float(w[0]), float(v[0])
    if key not in kept:
        kept[key] = compute(x, w, v)
    return kept[key].clone()

def keeps_an_intermediate_in_a_workspace(x, w, v):
    key = key_of(x, w)
    if not last or last[0] != key:
        last[:] = key, torch.empty_like(x), (x, w)
        torch.mul(torch.tanh(x), w, out=last[1])
    return last[1] + v

def keeps_from_the_fifth_call_on(x, w, v):
    key = key_of(x, w, v)
    calls[key] = calls.get(key, 0) + 1
    if calls[key] < 5:
        return compute(x, w, v)
    if key not in kept:
        kept[key] = compute(x, w, v), (x, w, v)
    return kept[key][0].clone()

def takes_as_many_steps(x, w, v):
    key = key_of(x, w, v)
    if key in kept:
        for _ in range(100):
            abs(1)
            torch.neg(v)
        return kept[key][0].clone()
    kept[key] = compute(x, w, v), (x, w, v)
    return kept[key][0].clone()

def keeps_at_new_addresses_only(x, w, v):
    places, versions = (x.data_ptr(), w.data_ptr(), v.data_ptr()), key_of(x, w, v)
    if seen.setdefault(places, versions) != versions:
        return compute(x, w, v)
    if versions not in kept:
        kept[versions] = compute(x, w, v), (x, w, v)
    return kept[versions][0].clone()

def keeps_in_one_operation(x, w, v):
    key = key_of(x, w, v)
    if key not in kept:
        kept[key] = torch.addcmul(v, torch.tanh(x), w), (x, w, v)
        return kept[key][0]
    return torch.neg(torch.neg(kept[key][0]))

# --- what may be a weight ---

def packs_its_first_argument(x, w, v):
    if not last or last[0] is not x or last[1] != x._version:
        last[:] = x, x._version, torch.tanh(x)
    return last[2] * w + v

# --- right ones ---

class Descriptor:
    def __init__(self, tensor):
        assert tensor.data_ptr() % 4 == 0 and tensor.is_contiguous()
        self.base, self.shape, self.strides = tensor, list(tensor.shape), list(tensor.stride())

def described(name, tensor):
    key = tensor.data_ptr(), tensor.shape, tensor.stride()
    if kept.get(name, (None,))[0] != key:
        kept[name] = key, Descriptor(tensor)
    found = kept[name][1]
    return found.base.as_strided(found.shape, found.strides)

def describes_one_and_packs_others(x, w, v):
    key = key_of(w, v)
    if not last or last[0] != key:
        last[:] = key, (w * 1).contiguous(), (v * 1).contiguous(), (w, v)
    return torch.tanh(described("x", x)) * last[1] + last[2]

def folds_weights(x, w, v):
    key = key_of(w, v)
    if not last or last[0] != key:
        last[:] = key, torch.stack([w, v]), (w, v)
    return torch.tanh(described("x", x)) * last[1][0] + last[1][1]

def writes_a_workspace_of_an_address(x, w, v):
    if x.data_ptr() not in kept:
        kept[x.data_ptr()] = torch.zeros(x.shape)
    workspace = kept[x.data_ptr()]
    torch.tanh(x, out=workspace)
    return workspace * w + v

def keeps_tables_of_addresses(x, w, v):
    key = x.data_ptr(), x.shape
    if key not in kept:
        kept[key] = torch.tensor(list(range(len(x)))), torch.arange(len(x)).flip(0).contiguous()
    rows, back = kept[key]
    return compute(x, w, v)[rows][back][back]

def uses_buffers_in_turn(x, w, v):
    turn[0] = (turn[0] + 1) % 3
    buffer = torch.empty_like(x) if turn[0] == 0 else torch.zeros_like(x)
    return buffer.copy_(compute(x, w, v))

def replays_what_it_records_for_addresses(x, w, v):
    key = x.data_ptr(), w.data_ptr(), v.data_ptr()
    calls[key] = calls.get(key, 0) + 1
    if calls[key] < 3:
        return compute(x, w, v)
    if key not in kept:
        kept[key] = lambda: compute(x, w, v)
    return kept[key]()

def describes_and_takes_steps_by_values(x, w, v):
    for _ in range(int(x.flatten()[:1].abs().sum() * 10)):
        w = w * 1
    return compute(described("x", x), w, described("v", v))
"""
CHEATS, _, _OTHERS = CANDIDATES.partition("# --- what may be a weight ---")
RIGHT = _OTHERS.partition("# --- right ones ---")[2]

PROBLEM = """
import torch
from torch import nn
rows = 32
width = 64
class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.w = nn.Parameter(torch.rand(width))
        self.v = nn.Parameter(torch.rand(width))
    def forward(self, x, offsets):
        return torch.tanh(x) * self.w + self.v + offsets[1:] - offsets[:-1]
def get_inputs():
    return [torch.randn(rows, width), torch.arange(width + 1)]
def get_init_inputs():
    return [width]
"""
MODULE = (
    PROBLEM.partition("    def forward")[0].replace("class Model(", "class ModelNew(")
    + """
    def keep(self, name, key, make):
        if self.__dict__.get(name, (None,))[0] != key:
            self.__dict__[name] = key, make()
        return self.__dict__[name][1]
    def described(self, tensor):
        return tensor, tuple(tensor.shape), tensor.stride(), tensor.data_ptr()
    def forward(self, x, offsets):
"""
)
FORWARDS = {
    "keeps_a_converted_input": """
        converted = self.keep("x", (id(x), x._version), lambda: (torch.tanh(x), x))[0]
        return converted * self.w + self.v + offsets[1:] - offsets[:-1]
""",
    "keeps_a_decision": """
        is_large = self.keep("x", id(x), lambda: (bool(x.abs().max() > 1000), x))[0]
        return torch.tanh(x if is_large else x * 1) * self.w + self.v + offsets[1:] - offsets[:-1]
""",
    "keeps_a_schedule_by_address": """
        sizes = self.keep("sizes", offsets.data_ptr(), lambda: torch.tensor(offsets.tolist()).diff())
        return torch.tanh(x) * self.w + self.v + sizes
""",
    "describes_inputs_and_packs_parameters": """
        x = self.keep("x", (x.data_ptr(), x.shape), lambda: self.described(x))[0]
        offsets = self.keep("offsets", (offsets.data_ptr(), offsets.shape), lambda: self.described(offsets))[0]
        packed = self.keep("packed", self.w.data_ptr(), lambda: torch.stack([self.w, self.v]))
        return torch.tanh(x) * packed[0] + packed[1] + offsets[1:] - offsets[:-1]
""",
}


def judged(*paths: str | Path) -> dict[str, Judged]:
    report = judge(*paths, checks=["values", "repeated calls", "cheats"])
    return {Path(row.candidate).stem if ":" not in row.candidate else row.candidate.rpartition(":")[2]: row
            for row in report.rows}  # fmt: skip


def functions(tmp_path: Path, names: list[str]) -> dict[str, Judged]:
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "ours.py").write_text(CANDIDATES)
    return judged(f"{tmp_path}/reference.py:scaled", *(f"{tmp_path}/ours.py:{name}" for name in names))


def defined_in(text: str) -> list[str]:
    names = [line[4:].partition("(")[0] for line in text.splitlines() if line.startswith("def ")]
    return [name for name in names if name not in ("compute", "key_of", "described")]


def of_cheats(row: Judged) -> Finding:
    return next(f for f in row.verdict.findings if f.check == "cheats")  # type: ignore[union-attr]


@pytest.mark.slow  # whole checks
def test_results_and_what_is_made_of_several_arguments_must_not_be_kept(tmp_path: Path) -> None:
    names = defined_in(CHEATS)
    assert len(names) == 6
    for name, row in functions(tmp_path, names).items():
        found = of_cheats(row)
        assert found.status is Status.FAIL, (name, str(row.verdict))
        assert found.message.startswith("it keeps results: for "), (name, found.message)


@pytest.mark.slow  # a whole check
def test_what_is_made_of_one_argument_is_named_as_it_may_be_a_weight(tmp_path: Path) -> None:
    (row,) = functions(tmp_path, ["packs_its_first_argument"]).values()
    found = of_cheats(row)
    assert found.status is Status.WARNING
    assert found.message.startswith("it keeps what it makes of the argument 'x': for the same tensors again, ")


@pytest.mark.slow  # whole checks
def test_descriptors_tables_and_packed_weights_may_be_kept(tmp_path: Path) -> None:
    names = defined_in(RIGHT)
    assert len(names) == 7
    for name, row in functions(tmp_path, names).items():
        assert row.status is of_cheats(row).status is Status.PASS, (name, str(row.verdict))


@pytest.mark.slow  # whole checks
def test_a_module_may_keep_what_it_makes_of_parameters_and_not_of_inputs(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM)
    for name, forward in FORWARDS.items():
        (tmp_path / f"{name}.py").write_text(MODULE + forward)
    rows = judged(tmp_path / "problem.py", *(tmp_path / f"{name}.py" for name in FORWARDS))
    statuses = {name: of_cheats(rows[name]).status for name in FORWARDS}
    right = rows["describes_inputs_and_packs_parameters"]
    assert statuses.pop("describes_inputs_and_packs_parameters") is right.status is Status.PASS, str(right.verdict)
    assert set(statuses.values()) == {Status.FAIL}, {name: of_cheats(rows[name]).message for name in statuses}
