"""Fake tensors of arguments."""

from __future__ import annotations

import pytest
import torch

from opwright.internals import compiler
from opwright.internals.compiler import as_fakes, fake_tensors

_WHOLE = torch.arange(24.0).reshape(4, 6)
_LAYOUTS = {
    "contiguous": _WHOLE,
    "sliced": _WHOLE[1:, ::2],
    "transposed": _WHOLE.T,
    "expanded": torch.ones(3, 1).expand(3, 5),
    "empty": torch.ones(0, 3),
    "scalar": torch.tensor(2, dtype=torch.int16),
    "conjugated": torch.ones(2, 3, dtype=torch.complex64).conj(),
    "negative": torch.ones(2, dtype=torch.complex64).conj().imag,
    "differentiable": torch.ones(2).requires_grad_(),
    "sparse": torch.eye(3).to_sparse(),
}


def _properties(t: torch.Tensor) -> tuple[object, ...]:
    layout = () if t.is_sparse else (t.stride(), t.storage_offset(), t.untyped_storage().nbytes())
    return type(t), t.shape, t.dtype, t.device, t.layout, t.is_conj(), t.is_neg(), t.requires_grad, layout


@pytest.mark.parametrize("name", _LAYOUTS)
def test_a_fake_that_was_made_alone_is_like_torchs(name: str) -> None:
    tensor = _LAYOUTS[name]
    with fake_tensors() as as_fake:
        expected = _properties(as_fake(tensor))
    with as_fakes([tensor, {"factor": 2}]) as (fake, others):
        assert _properties(fake) == expected
        assert others == {"factor": 2}
        assert type(fake + fake) is type(fake)


def test_fakes_of_a_torch_that_makes_others_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "_maker_of_fakes", lambda: None)
    with as_fakes([_WHOLE[:, 1:]]) as (fake,):
        assert fake.stride() == (6, 1)
        assert "FakeTensor" in type(fake).__name__


def test_a_maker_of_other_layouts_is_noticed() -> None:
    make = torch._subclasses.fake_tensor.FakeTensor
    assert compiler._keeps_layout(make)
    assert not compiler._keeps_layout(lambda mode, like, device: make(mode, like.contiguous(), device))
