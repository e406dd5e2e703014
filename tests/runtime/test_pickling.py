"""Operators are pickled by module and name, and copied as functions are."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import subprocess
import sys
from typing import Annotated

import cloudpickle
import pytest
import torch
from jaxtyping import Float32
from torch import Tensor

import opwright as ow


@ow.op("pickling::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x


@ow.op("pickling::scale_")
def scale_(x: Annotated[Float32[Tensor, " n"], ow.mutated], a: float) -> None:
    x.mul_(a)


twice.python(lambda x: x + x, name="sum")
by_sum = twice.restricted_to("sum")


class Holder:
    @staticmethod
    @ow.op("pickling::thrice")
    def thrice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return 3 * x


class Module(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x):
        return self.operator(x)


@pytest.mark.parametrize("operator", [twice, scale_, scale_.functional, by_sum, Holder.thrice], ids=str)
def test_a_pickle_and_a_copy_are_the_operator_itself(operator):
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(operator, protocol)) is operator
    assert pickle.loads(cloudpickle.dumps(operator)) is operator
    assert copy.copy(operator) is operator
    assert copy.deepcopy([operator])[0] is operator
    partial = pickle.loads(pickle.dumps(functools.partial(operator, torch.ones(3))))
    assert partial.func is operator


def test_a_module_that_holds_one_is_saved():
    file = io.BytesIO()
    torch.save(Module(twice), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert loaded.operator is twice
    assert torch.equal(loaded(torch.ones(3)), torch.full((3,), 2.0))


def test_one_that_is_not_found_is_refused(namespace):
    @ow.op(f"{namespace}::local")
    def local(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
        return x + 1

    for held in (local, Module(local)):
        with pytest.raises(pickle.PicklingError) as error:
            pickle.dumps(held)
        assert f"{namespace}::local cannot be pickled" in str(error.value)
        assert "local is defined in a function\n  → define it at the top level of a module" in str(error.value)
    assert copy.copy(local) is local
    other = twice.restricted_to("reference")
    with pytest.raises(pickle.PicklingError, match=r"twice_reference .*test_pickling\.twice is another object"):
        pickle.dumps(other)


SCRIPT = """
import multiprocessing, sys
import cloudpickle, torch
from jaxtyping import Float32
from torch import Tensor
import opwright as ow

@ow.op("pickling_script::twice")
def twice(x: Float32[Tensor, " n"]) -> Float32[Tensor, " n"]:
    return 2 * x

twice.python(lambda x: x + x, name="sum")

class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.held = twice
    def __len__(self):
        return 3
    def __getitem__(self, i):
        return self.held(torch.full((2,), float(i)))

if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="spawn")
        print([float(x.sum()) for x in loader])
    else:
        open(sys.argv[1], "wb").write(cloudpickle.dumps(twice))
"""


@pytest.mark.slow  # new processes
def test_an_operator_of_a_script_in_a_spawned_worker(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    run = subprocess.run([sys.executable, str(file), "spawn"], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "[0.0, 4.0, 8.0]", run.stderr


@pytest.mark.slow  # a new process
def test_cloudpickle_sends_an_operator_of_a_script_by_value(tmp_path):
    file, sent = tmp_path / "script.py", tmp_path / "sent"
    file.write_text(SCRIPT)
    subprocess.run([sys.executable, str(file), str(sent)], check=True)
    received = pickle.loads(sent.read_bytes())
    assert received.contract.qualname == "pickling_script::twice"
    assert [*received.kernels] == ["sum"]
    assert torch.equal(received(torch.ones(2)), torch.full((2,), 2.0))
