"""Contracts that are inferred from references."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from opwright.errors import TargetError
from opwright.judged.contract import Inferred
from opwright.judged.contract_text import contract_text
from opwright.judged.inferring.inference import infer
from opwright.judged.inferring.value_ranges import integer_range
from opwright.judged.sources import Source
from opwright.judged.task import Task
from tests.judged.programs import PROBLEM, SOFTMAX


def inferred(folder: Path, text: str) -> Inferred:
    file = folder / "problem.py"
    file.write_text(text)
    constructor = "get_init_inputs" if "get_init_inputs" in text else ""
    reference = "Model" if "class Model" in text else "reference"
    task = Task("problem", "kernelbench", file, reference, (), constructor=constructor)
    found = infer(task)
    compile(contract_text(task, found), "the contract", "exec")
    return found


def dims(found: Inferred) -> dict[str, str]:
    return {t.name: " ".join(t.dims or ()) for t in found.arguments}


def test_constants_become_dims_and_parameters_become_arguments(tmp_path: Path) -> None:
    found = inferred(tmp_path, PROBLEM)
    assert dims(found) == {
        "x": "batch_size in_features",
        "linear_weight": "out_features in_features",
        "linear_bias": "out_features",
    }
    assert [" ".join(t.dims or ()) for t in found.outputs] == ["batch_size out_features"]
    assert found.own == {"batch_size": 8192, "in_features": 512, "out_features": 2048}
    assert any("unused = 7" in sentence for sentence in found.fixed)
    assert not found.has_one_shape


def test_without_constants_parameters_have_the_sizes_of_the_constructor(tmp_path: Path) -> None:
    """A candidate's module is constructed with the same arguments, so that it has no others."""
    text = """
import torch
class Model(torch.nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.weight, self.bias = torch.nn.Parameter(torch.randn(n, k)), torch.nn.Parameter(torch.randn(n))
    def forward(self, x): return x @ self.weight.t() + self.bias
def get_inputs(): return [torch.randn(48, 40)]
def get_init_inputs(): return [56, 40]
"""
    found = inferred(tmp_path, text)
    assert dims(found) == {"x": "n0 40", "weight": "56 40", "bias": "56"}
    assert any(sentence.startswith("the sizes of parameters and buffers") for sentence in found.fixed)
    assert not found.has_one_shape


def test_of_many_parameters_the_first_are_arguments(tmp_path: Path) -> None:
    text = """
import torch
class Model(torch.nn.Sequential):
    def __init__(self): super().__init__(*(torch.nn.Linear(4, 4) for _ in range(LAYERS)))
def get_inputs(): return [torch.randn(3, 4)]
def get_init_inputs(): return []
"""
    found = inferred(tmp_path, text.replace("LAYERS", "28"))
    assert (len(found.state), found.fixed_state, len(found.arguments)) == (56, 0, 57)
    found = inferred(tmp_path, text.replace("LAYERS", "40"))
    assert (len(found.state), found.fixed_state, len(found.arguments)) == (56, 24, 57)
    assert any(sentence.startswith("24 parameters and buffers are the constructor's") for sentence in found.fixed)
    many = text.replace("LAYERS", "40").replace("[torch.randn(3, 4)]", "[torch.randn(3, 4) for _ in range(9)]")
    many = many.replace("def get_inputs", "    def forward(self, x, *more): return super().forward(x)\ndef get_inputs")
    with pytest.raises(TargetError, match=r"at most 64 tensors among .* no more arguments, got 65"):
        inferred(tmp_path, many)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # A size that another constant determines, a relation, a constant that no size shows, no constant at all.
        ("torch.randn(batch_size, dim)", "torch.randn(batch_size, 2 * dim), dim // 2", "_"),
        ("torch.softmax(x, dim=1)", "torch.softmax(x.view(x.shape[0], 4, -1), dim=1)", "batch_size dim"),
        ("torch.randn(batch_size, dim)", "torch.randn(16, 300)", "n0 n1"),
        ("dim = 16384", "dim = int('16384')", "batch_size 16384"),
    ],
)
def test_what_is_not_shown_by_a_size_is_fixed(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert old in SOFTMAX
    if expected == "_":
        with pytest.raises(TargetError, match="must run on the inputs of get_inputs"):
            inferred(tmp_path, SOFTMAX.replace(old, new))
        return
    found = inferred(tmp_path, SOFTMAX.replace(old, new))
    assert dims(found) == {"x": expected}
    assert ("dim % 4 == 0" in found.where) is ("view" in new)
    assert not found.has_one_shape


@pytest.mark.parametrize(
    ("body", "inputs", "expected"),
    [
        ("return x @ y", "torch.randn(30, 20), torch.randn(20, 50)", {"x": "n0 n1", "y": "n1 n2"}),
        ("return x + y", "torch.randn(30, 20), torch.randn(30, 1)", {"x": "n0 n1", "y": "n0 1"}),
        ("return x.view(30, 20) + y", "torch.randn(600), torch.randn(20)", {"x": "600", "y": "20"}),
    ],
)
def test_axes_that_agree_have_one_name_where_there_are_no_constants(
    tmp_path: Path, body: str, inputs: str, expected: dict[str, str]
) -> None:
    text = f"import torch\ndef reference(x, y):\n    {body}\ndef get_inputs():\n    return [{inputs}]\n"
    found = inferred(tmp_path, text)
    assert dims(found) == expected
    assert found.has_one_shape is ("view" in body)


RANGES = """
import torch
batch = 32
classes = 100
def reference(x, target, weight):
    return BODY
def get_inputs():
    return [torch.rand(batch, classes), torch.randint(0, classes, (batch,)), torch.rand(classes) + 0.1]
"""


@pytest.mark.parametrize(
    ("body", "ranges"),
    [
        ("torch.nn.functional.cross_entropy(x, target)", {"target": (0, "classes-1")}),
        ("x.log().gather(1, target[:, None])", {"x": (0, 1), "target": (0, "classes-1")}),
        ("(x / weight.sqrt()).gather(1, target[:, None])", {"weight": (0.1, 1.1), "target": (0, "classes-1")}),
    ],
)
def test_values_stay_where_the_reference_is_defined(
    tmp_path: Path, body: str, ranges: dict[str, tuple[float, float | str]]
) -> None:
    found = {t.name: (t.low, t.high) for t in inferred(tmp_path, RANGES.replace("BODY", body)).arguments}
    for name, (low, high) in found.items():
        if name not in ranges:
            assert (low, high) == (None, None)
            continue
        expected_low, expected_high = ranges[name]
        assert low == pytest.approx(expected_low, abs=0.2)
        assert high == (expected_high if isinstance(expected_high, str) else pytest.approx(expected_high, abs=0.3))


def test_batch_norm_updates_are_said_and_random_results_are_found(tmp_path: Path) -> None:
    text = SOFTMAX.replace(
        "def forward", "def __init__(self):\n        super().__init__()\n        self.n = BODY\n    def forward"
    )
    found = inferred(
        tmp_path, text.replace("BODY", "nn.BatchNorm1d(dim)").replace("torch.softmax(x, dim=1)", "self.n(x)")
    )
    assert any(s.startswith("n.num_batches_tracked: the reference updates it") for s in found.fixed)
    assert not found.is_random
    found = inferred(tmp_path, text.replace("BODY", "nn.Dropout(0.5)").replace("torch.softmax(x, dim=1)", "self.n(x)"))
    assert found.is_random


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Model: pass", "must define 'get_inputs'"),
        (SOFTMAX.replace("torch.softmax(x, dim=1)", "x @ x"), "must run on the inputs of get_inputs, got RuntimeError"),
        (
            SOFTMAX.replace("return [torch.randn(batch_size, dim)]", "return [[torch.randn(3)]]"),
            "a list of tensors|must run",
        ),
        ("def get_inputs(:", r"problem.py:1: "),
    ],
)
def test_what_is_no_task_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        inferred(tmp_path, text)


@pytest.mark.parametrize(
    ("made", "is_drawn"),
    [
        ("torch.rand(n, n)", False),
        ("(2 * torch.randn(n, n).cuda().half() - 1)", False),
        ("torch.triu(torch.rand(n, n))", True),
        ("torch.rand(n, n).softmax(-1)", True),
        ("torch.randn(n, n) @ torch.randn(n, n)", True),
        ("made(n)", True),
    ],
)
def test_only_plain_random_numbers_are_drawn_by_us(tmp_path: Path, made: str, is_drawn: bool) -> None:
    text = "import torch\nn = 24\ndef made(n): return torch.eye(n)\ndef reference(x):\n    return 2 * x\n"
    for body in (f"    return [{made}]", f"    x = {made}\n    return [x]"):
        file = tmp_path / "problem.py"
        file.write_text(f"{text}def get_inputs():\n{body}\n")
        source = Source(file)
        assert source.plain_inputs("get_inputs") == [not is_drawn]
    if ".cuda" not in made:
        (argument,) = infer(Task("problem", "pair", file, "reference", ())).arguments
        assert (argument.drawn_as, argument.dims) == (0 if is_drawn else -1, ("n", "n"))


def test_inputs_that_are_not_written_out_are_drawn_by_the_task(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_text(
        "import torch\ndef get_inputs():\n    return [torch.rand(3) for _ in range(2)]"
    )
    assert Source(tmp_path / "problem.py").plain_inputs("get_inputs") == []


def test_one_value_of_a_constant_shows_no_dependence() -> None:
    drawn = torch.tensor([0, 9])
    assert integer_range([({"n": 10}, drawn)]) == (0, 9)
    assert integer_range([({"n": 10}, drawn), ({"n": 20}, torch.tensor([1, 17]))]) == (0, "n-1")
    assert integer_range([({"n": 10}, drawn), ({"n": 40}, drawn)]) == (0, 9)


def test_lengths_reach_the_size_that_they_count() -> None:
    several = [({"n": 4}, torch.tensor([1, 4])), ({"n": 16}, torch.tensor([1, 9])), ({"n": 32}, torch.tensor([2, 30]))]
    assert integer_range(several) == (1, "n")
    assert integer_range([*several, ({"n": 8}, torch.tensor([9]))]) == (1, 30)  # beyond the size


SPLIT = """
import torch
rows = 24
width = 48
def reference(x):
    BODY
def get_inputs():
    return [torch.randn(rows, width)]
"""


@pytest.mark.parametrize(
    ("body", "relations", "returned"),
    [
        # Three columns in two parts are two and one, which broadcast; five are three and two, which do not.
        ("a, b = x.chunk(2, dim=-1); return a * b", ["width % 2 == 0"], "rows width//2"),
        # Nothing broadcasts where both parts are put together.
        ("a, b = x.chunk(2, dim=-1); return torch.cat([-b, a], -1) * x", [], "rows width"),
        ("a, b, c = x.chunk(3, dim=-1); return a * b + c", ["width % 3 == 0"], "rows width//3"),
        # These broadcast in each run.
        ("return x * x.sum(-1, keepdim=True)", [], "rows width"),
        ("return x - x.mean(0)", [], "rows width"),
    ],
)
def test_a_size_that_only_broadcasts_by_accident_is_refused(
    tmp_path: Path, body: str, relations: list[str], returned: str
) -> None:
    found = inferred(tmp_path, SPLIT.replace("BODY", body))
    assert [text for text in found.where if "%" in text] == relations
    assert [" ".join(t.dims or ()) for t in found.outputs] == [returned]


@pytest.mark.parametrize(
    ("made", "layouts", "said"),
    [
        ("torch.randn(width, rows).t()", {0: (1, 0)}, "the layouts of the arguments"),
        ("torch.randn(rows, 2 * width)[:, :width]", {0: ()}, "the layouts of the arguments"),
        ("torch.randn(rows, width)", {}, "contiguous arguments"),
    ],
)
def test_the_layouts_that_a_task_gives_its_arguments_are_kept(
    tmp_path: Path, made: str, layouts: dict[int, tuple[int, ...]], said: str
) -> None:
    text = SPLIT.replace("BODY", "return x + 1").replace("torch.randn(rows, width)", made)
    found = inferred(tmp_path, text)
    assert found.layouts == layouts
    assert any(sentence.startswith(said) for sentence in found.fixed)
