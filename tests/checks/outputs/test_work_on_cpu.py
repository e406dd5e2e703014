"""Where torch computes what the check "own work" sees. (Tensors on ``meta`` stand for those on a GPU.)"""

from __future__ import annotations

import pytest
import torch

from opwright.checks.outputs.own_work import _Seen, _work_on_cpu

ON_GPU = torch.empty(5, device="meta")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([torch.ones(5), torch.ones(5)], "it computes on the CPU: aten::mul"),
        ([torch.tensor(1.0), torch.tensor(2.0)], ""),  # numbers
        ([torch.tensor(1.0), ON_GPU], ""),  # torch computes it where the other one is
        ([ON_GPU, torch.tensor(1.0)], ""),
        ([ON_GPU, ON_GPU], ""),
    ],
)
def test_a_number_on_the_cpu_is_computed_with_where_the_others_are(arguments: list[torch.Tensor], found: str) -> None:
    seen = _Seen()
    seen.add("mul", arguments)
    assert _work_on_cpu(seen) == found
