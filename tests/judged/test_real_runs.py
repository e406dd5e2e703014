"""Contracts of references that read values, or that run for long: small real runs, and smaller constants."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from opwright.errors import TargetError
from opwright.judged.called import CalledTask
from opwright.judged.contract import Inferred
from opwright.judged.inferring.inference import infer
from opwright.judged.task import Task

# The rows of each sequence are in pages; the reference reads how long a sequence is.
_PAGED = """
import torch
from torch import nn

B = 64
LENGTH = 4096
PAGE = 16
WIDTH = 4096

class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, rows, table, lengths):
        out = torch.zeros(table.shape[0], rows.shape[2])
        for b in range(table.shape[0]):
            READ
            pages = table[b, : (length + PAGE - 1) // PAGE].long()
            out[b] = rows[pages].flatten(0, 1)[:length].sum(0)
        return out

def get_inputs():
    pages = (LENGTH + PAGE - 1) // PAGE
    rows = torch.randn(B * pages + 3, PAGE, WIDTH)
    table = torch.randperm(B * pages).reshape(B, pages).int()
    return [rows, table, torch.full((B,), LENGTH, dtype=torch.int32)]

def get_init_inputs():
    return [LENGTH]
"""
_READS = "length = int(lengths[b].item())"


def inferred(folder: Path, text: str, **options: object) -> Inferred:
    file = folder / "problem.py"
    file.write_text(text)
    return infer(Task("problem", "kernelbench", file, "Model", (), constructor="get_init_inputs", **options))  # type: ignore[arg-type]


def test_a_reference_that_reads_values_runs_with_small_sizes(tmp_path: Path) -> None:
    found = inferred(tmp_path, _PAGED.replace("READ", _READS))
    assert {a.name: " ".join(a.dims or ()) for a in found.arguments} == {
        "rows": "B*LENGTH_size+3 16 WIDTH", "table": "B LENGTH_size", "lengths": "B",
    }  # fmt: skip
    assert found.own == {"B": 64, "LENGTH_size": 256, "WIDTH": 4096}
    assert found.constants["LENGTH"] == (1, 1, "(LENGTH+15)//16")
    assert any("PAGE = 16: no size of an argument shows it" in sentence for sentence in found.fixed)


def test_inputs_belong_to_the_constants_that_their_sizes_show(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(_PAGED.replace("READ", _READS))
    places = {"B": (1, 0), "LENGTH": (1, 1, "(LENGTH+15)//16"), "WIDTH": (0, 2)}
    task = CalledTask(str(file), "Model", inputs="get_inputs", constructor="get_init_inputs", constants=places)
    lengths = set()
    for pages in range(1, 20):
        sizes = {"B": 2, "LENGTH_size": pages, "WIDTH": 3}
        rows, table, length = (
            task.drawn(i)((), torch.Generator().manual_seed(1), **sizes) for i in range(3)  # one call for each argument
        )  # fmt: skip
        assert list(table.shape) == [2, pages]
        assert 16 * (pages - 1) < int(length[0]) <= 16 * pages
        lengths.add(int(length[0]) % 16)
        assert task.reference(rows, table, length).shape == (2, 3)
    assert len(lengths) > 8
    (sample,) = task.samples(1 << 12)
    assert sample[1].shape[1] >= 1
    assert 0 < int(sample[2][0]) <= 16 * sample[1].shape[1]


def test_a_reference_that_fails_on_real_inputs_too_is_refused_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"must run on the inputs of get_inputs, got DataDependentOutputException"):
        inferred(tmp_path, _PAGED.replace("READ", f"{_READS}; raise ValueError(length)"))


def test_a_dataclass_of_the_reference_finds_its_module(tmp_path: Path) -> None:
    text = "from __future__ import annotations\nfrom dataclasses import dataclass\n" + _PAGED.replace("READ", _READS)
    found = inferred(tmp_path, text + "\n@dataclass\nclass Config:\n    n: int = 3\n")
    assert found.own["B"] == 64


_SLOW = """
import torch
from torch import nn

B = 8
T = 4096
D = 512

class Model(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            total = total * 0.5 + x[:, t].sin()
        return total

def get_inputs():
    return [torch.randn(B, T, D)]

def get_init_inputs():
    return []
"""


def test_a_reference_that_takes_long_runs_with_smaller_constants(tmp_path: Path) -> None:
    found = inferred(tmp_path, _SLOW)
    assert [" ".join(a.dims or ()) for a in found.arguments] == ["B T D"]
    assert found.own == {"B": 8, "T": 4096, "D": 512}


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(_SLOW)
    found = infer(Task("problem", "kernelbench", file, "Model", (), constructor="get_init_inputs"), seconds=0)
    assert found.has_one_shape
    assert sum("no other value was tried, because the reference takes long" in each for each in found.fixed) == 3


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((256, 384), {"W % 128 == 0"}),
        ((512, 1024), {"W % 256 == 0"}),
        ((256, 300), set()),
        ((520,), set()),
        ((), set()),
    ],
)
def test_a_task_that_states_its_cases_has_sizes_like_theirs(
    tmp_path: Path, widths: tuple[int, ...], expected: set[str]
) -> None:
    text = _SLOW.replace("D = 512", "W = 512").replace("B, T, D", "B, T, W").replace("T = 4096", "T = 8")
    cases = tuple({"B": random.Random(w).randrange(1, 9), "T": 8 + w % 3, "W": w} for w in widths)  # and the own 512
    found = inferred(tmp_path, text, cases=cases)
    assert {relation for relation in found.where if "W %" in relation} == expected
    assert any("holds in all cases of the task" in sentence for sentence in found.fixed) is bool(expected)
