"""A candidate's module gets parameters before its first call; its code finds what it would find on a GPU."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import nn

from opwright.errors import NotSimulatedError
from opwright.judged.calling.as_on_gpu import as_on_gpu
from opwright.judged.calling.filled_modules import FilledModule


class Reference(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("table", torch.zeros(2), persistent=False)


class Packs(nn.Module):
    """Doubles its parameters once, before its first result."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.zeros(3))
        self.packed: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is None:
            self.packed = 2 * self.scale
        return x * self.packed


class PacksWhenLoaded(Packs):
    def load_state_dict(self, state: dict[str, torch.Tensor], strict: bool = True, assign: bool = False) -> None:  # type: ignore[override]
        self.packed = 2 * state["scale"]


class ByVersion(Packs):
    """Looks whether its parameters have changed."""

    seen = -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.seen != self.scale._version:
            self.packed, self.seen = 2 * self.scale, self.scale._version
        return super().forward(x)


@pytest.mark.parametrize("size", [1, 2])  # one element would be broadcast
def test_parameters_of_another_shape_are_refused_and_not_broadcast(size: int) -> None:
    modules = FilledModule(Packs, Reference)
    with pytest.raises(ValueError, match=rf"the candidate's scale takes values of the shape \(3,\), got \({size},\)"):
        modules.given({"scale": torch.ones(size), "table": torch.zeros(2)})
    assert modules.given({"scale": torch.ones(3), "table": torch.zeros(2)})(torch.ones(3)).tolist() == [2, 2, 2]


class Column(nn.Module):
    """The reference's buffer as a column, which the same seed would fill with the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(3, 1))


def test_a_parameter_of_another_shape_gets_the_same_numbers() -> None:
    module = FilledModule(Column, Reference).given({"scale": torch.arange(3.0), "table": torch.zeros(2)})
    assert module.scale.tolist() == [[0], [1], [2]]  # type: ignore[operator]


@pytest.mark.parametrize("kind", [Packs, PacksWhenLoaded, ByVersion])
def test_what_a_module_prepares_is_made_of_the_parameters_of_the_call(kind: type[nn.Module]) -> None:
    modules = FilledModule(kind, Reference, loads_state=True)
    x, table = torch.arange(3.0), torch.zeros(2)
    for scale in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])):
        module = modules.given({"scale": scale, "table": table})
        assert torch.equal(module(x), 2 * scale * x)
        assert modules.given({"scale": scale.clone(), "table": table}) is module


def test_a_buffer_that_a_call_has_updated_is_restored() -> None:
    modules = FilledModule(Packs, Reference)
    values = {"scale": torch.ones(3), "table": torch.zeros(2)}
    modules.given(values).scale.add_(5)  # type: ignore[operator]
    assert torch.equal(modules.given(values).scale, torch.ones(3))  # type: ignore[arg-type]


def test_what_a_call_under_inference_mode_has_made_is_made_anew() -> None:
    modules = FilledModule(Packs, Reference)
    values = {"scale": torch.ones(3), "table": torch.zeros(2)}
    with torch.inference_mode():
        first = modules.given(values)
        first.register_buffer("scale", torch.ones(3) + 5)
    second = modules.given(values)
    assert second is not first
    assert torch.equal(second.scale, torch.ones(3))  # type: ignore[arg-type]


def test_code_for_a_gpu_runs_on_tensors_in_memory() -> None:
    x = torch.ones(4)
    with as_on_gpu():
        assert x.is_cuda
        assert (x.device.type, x.get_device(), torch.cuda.is_available()) == ("cuda", 0, True)
        made = torch.empty(4, device="cuda"), x.to("cuda"), x.cuda(), torch.zeros(2, device=torch.device("cuda", 0))
        torch.cuda.synchronize()
        assert torch.cuda.current_stream().cuda_stream == 0
        assert torch.cuda.get_device_properties(0).multi_processor_count > 0
        assert torch.einsum("i,i->", x, x) == 4
    assert {t.device.type for t in made} == {"cpu"}
    assert not x.is_cuda
    assert (x.device.type, x.get_device()) == ("cpu", -1)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_what_only_a_gpu_does_is_not_simulated_and_other_errors_stay() -> None:
    with pytest.raises(NotSimulatedError, match="the candidate needs a GPU"), as_on_gpu():
        torch.cuda.Stream()
    with pytest.raises(NotSimulatedError, match="the module 'no_such_package' must be installed"), as_on_gpu():
        importlib.import_module("no_such_package")
    with pytest.raises(RuntimeError, match="sizes differ"), as_on_gpu():
        raise RuntimeError("sizes differ")
    assert torch.cuda.synchronize.__module__ == "torch.cuda"
