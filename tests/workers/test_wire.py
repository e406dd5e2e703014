"""Values between the checker and the kernel's process: layouts arrive, writes are seen, broken answers are refused."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opwright.checks.exceptions import Raised
from opwright.checks.process.kernel_client import RemoteCalls
from opwright.gallery.add import add
from opwright.workers.copies import changed_bytes
from opwright.workers.wire import BrokenAnswer, Connection, Ended, NotATensor, read_tensors, write_tensors

BASE = torch.arange(24.0)
TENSORS = {
    "contiguous": BASE.view(4, 6),
    "transposed": BASE.view(4, 6).T,
    "sliced": BASE.view(4, 6)[1:, 1:6:2],
    "expanded": BASE[:1].expand(5),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 3),
    "empty part": BASE[5:5],
    "empty from NumPy": torch.from_numpy(np.empty(0, np.float32)),
    "one element with a stride": torch.ones(8)[::8],
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "bool": torch.tensor([True, False]),
    "float8": torch.randn(3).to(torch.float8_e4m3fn),
}


@pytest.fixture
def ends():
    checker, kernel = socket.socketpair()
    with checker, kernel:
        yield Connection(checker), Connection(kernel)


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_with_its_layout_and_its_elements_come_back(ends, name):
    checker, kernel = ends
    tensor = TENSORS[name]
    sent = checker.ask("results", {"arguments": (tensor, [tensor], None, 2.5)})["arguments"]
    assert changed_bytes(sent[0], tensor, elements=True) == 0
    kind, values = kernel.receive_question()
    (got, listed, none, number) = values["arguments"]
    assert (kind, none, number) == ("results", None, 2.5)
    for copy in (got, *listed):
        assert (copy.dtype, copy.shape, copy.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert torch.equal(copy.view(torch.uint8) if name == "float8" else copy, TENSORS[name].view(
            torch.uint8) if name == "float8" else tensor)  # fmt: skip
    described, payload = write_tensors([got, None, NotATensor("a number")])
    kernel.answer({"outputs": described}, payload)
    header, data = checker.receive_answer()
    back, none, other = read_tensors(header["outputs"], data)
    assert (back.dtype, back.shape, none, other) == (tensor.dtype, tensor.shape, None, NotATensor("a number"))
    assert back.tolist() == tensor.tolist()


def test_the_checker_sees_what_was_written_into_its_copy_alone(ends):
    checker, kernel = ends
    whole = torch.zeros(8)
    sent = checker.ask("observe", {"arguments": (whole[1::2],)})["arguments"][0]
    _, values = kernel.receive_question()
    values["arguments"][0].fill_(1)
    values["arguments"][0].as_strided((1,), (1,), 0).fill_(7)  # around its elements
    assert sent.tolist() == [1, 1, 1, 1]
    stored = torch.empty(0).set_(sent.untyped_storage())
    assert stored.tolist() == [7, 1, 0, 1, 0, 1, 0, 1]
    assert whole.tolist() == [0] * 8


def test_what_is_written_around_no_elements_is_seen(ends):
    checker, kernel = ends
    part = torch.zeros(8)[5:5]
    sent = checker.ask("observe", {"arguments": (part,)})["arguments"][0]
    _, values = kernel.receive_question()
    values["arguments"][0].as_strided((1,), (1,), 0).fill_(7)
    assert changed_bytes(sent, part, elements=False) == 2


def test_elements_that_lie_far_apart_take_no_memory_between_them(ends):
    checker, kernel = ends
    far = torch.empty(0).set_(torch.UntypedStorage(1 << 34), 0, (2, 3), (1 << 31, 1)).fill_(3)
    checker.ask("observe", {"arguments": (far,)})
    _, values = kernel.receive_question()
    assert values["arguments"][0].stride() == (1 << 31, 1)
    assert values["arguments"][0].tolist() == far.tolist()


def test_an_end_of_the_other_process_is_no_error_of_a_check(ends):
    checker, kernel = ends
    kernel._socket.close()
    with pytest.raises(Ended):
        checker.ask("observe", {"arguments": ()})
    assert not issubclass(Ended, Exception)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["float32", "is"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["dtype", "shape", "is", "kind", "text", "at", "strides", "device"]), inner, max_size=4
    ),
    max_leaves=6,
)  # fmt: skip
HEADERS = JSON | st.dictionaries(
    st.sampled_from(
        ["changed", "outputs", "layouts", "promised", "shared", "raised", "gradients", "wrong", "undefined", "message"]
    ),
    JSON | st.just({}) | st.just([]) | st.just([{"dtype": "float32", "shape": [2]}]),
)
CALLS = {
    "observe": lambda calls, x: calls.observe((x, x)),
    "results": lambda calls, x: calls.results((x, x)),
    "gradients": lambda calls, x: calls.gradients((x, x), [True, True], [x]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@given(header=HEADERS, payload=st.binary(max_size=12))
def test_any_answer_is_an_answer_or_broken(name, header, payload):
    checker, kernel = socket.socketpair()
    text = json.dumps(header).encode()
    with checker, kernel:
        kernel.sendall(struct.pack("<QQ", len(text), len(payload)) + text + payload)
        kernel.shutdown(socket.SHUT_WR)
        calls = RemoteCalls(Connection(checker), add.contract, lambda message: None)
        with contextlib.suppress(BrokenAnswer, Ended, Raised):  # Raised: the answer says that the kernel did
            CALLS[name](calls, torch.ones(2))


@pytest.mark.parametrize(
    "sent", [b"\xff" * 64, struct.pack("<QQ", 4, 0) + b"\xff\xfe{]", struct.pack("<QQ", 2, 1 << 50)]
)
def test_what_is_no_answer_is_broken(ends, sent):
    checker, kernel = ends
    kernel._send(sent)
    with pytest.raises(BrokenAnswer):
        checker.receive_answer()


def test_a_giant_answer_that_fits_is_read_in_parts(ends):
    checker, kernel = ends
    large = torch.randn(1 << 20)
    described, payload = write_tensors([large])
    sender = threading.Thread(target=kernel.answer, args=({"outputs": described}, payload))
    sender.start()
    header, data = checker.receive_answer()
    sender.join()
    assert torch.equal(read_tensors(header["outputs"], data)[0], large)
