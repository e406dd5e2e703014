"""Torch's own functions as kernels raise no false alarm (a part of what ``tests.opinfo.table`` checks)."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from opwright.contract.derive import fake_outputs
from tests.opinfo.contracts import LeftOut, infos, make
from tests.opinfo.table import check_function
from tests.sampled import sampled

FEW = ("nn.functional.relu", "amax")
REPRESENTATIVE = (
    "add", "addmm", "argmax", "atan2", "bmm", "cat", "cumsum", "digamma", "eq", "expm1", "fft.rfft", "gather",
    "index_add", "linalg.cholesky", "logsumexp", "masked_fill", "matmul", "nn.functional.gelu",
    "nn.functional.layer_norm", "nn.functional.linear", "nonzero", "softmax", "sort", "split", "topk", "var", "where",
)  # fmt: skip


def makeable(count):
    found = []
    for info in infos().values():
        try:
            found.append(make(info))
        except LeftOut:
            continue
        if len(found) == count:
            break
    return found


@pytest.mark.exhaustive
@pytest.mark.slow  # makes and runs contracts of ten functions
@pytest.mark.parametrize("count", [10, 150])
def test_contracts_can_be_made_of_many_functions(count):
    made = makeable(count)
    assert len(made) == count
    assert sum(m.layout.verified for m in made) > 0.85 * count
    assert len({m.operator.contract.qualname for m in made}) == count


@pytest.mark.slow  # a whole check of each
@pytest.mark.parametrize("name", sampled(FEW, 2))
def test_a_function_of_torch_is_right(name):
    for row in check_function(name, "cpu"):
        assert row["status"] == "pass", row["findings"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(REPRESENTATIVE, 14))
def test_there_is_no_false_alarm(name):
    for row in check_function(name, "cpu"):
        assert row["status"] in ("pass", "warning", "thin") or row.get("known"), row["findings"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 3])
def test_dtypes_that_differ_on_a_gpu_are_those_of_its_functions(rows):
    """Statistics of half precision are float32 on a GPU. Fakes need none."""
    info = infos()["native_layer_norm"]
    for device, expected in (("cpu", torch.float16), ("cuda", torch.float32)):
        made = make(info, device)
        operator, kernel = made.operator, made.operator.kernels["fused"].spec.source
        with FakeTensorMode():
            x, *parameters = (torch.empty(n, dtype=torch.float16, device=device) for n in ((rows, 2), 2, 2))
            promised = fake_outputs(operator.contract, [x, *parameters])
            for given in (info.op(x, (2,), *parameters, 1e-5), kernel(x, *parameters)):
                assert [t.dtype for t in given] == [t.dtype for t in promised] == [torch.float16, expected, expected]
