"""Values between a process that asks, and one that runs code which is not trusted: the checker's and the kernel's.

The asking process sends tensors in memory that both processes map: the kernel reads and writes them there, and the
checker sees what became of them. A pickle describes them. Answers are JSON and plain bytes: nothing of them is
unpickled, and each size is compared with what is allowed before memory is allocated for it.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from opwright import tree
from opwright.contract.dtypes import element_bytes
from opwright.workers.copies import same_layout_copy

__all__ = [
    "BrokenAnswer", "Connection", "Ended", "NotATensor", "Shared", "dtype_named", "read_tensors", "write_tensors",
]  # fmt: skip

# What tensors of torch's allocator on a CPU are aligned to.
_ALIGNMENT = 64
_LENGTH, _LENGTHS = struct.Struct("<Q"), struct.Struct("<QQ")
# The bytes of the longest header and of the largest results of an answer.
_LONGEST_HEADER, _MOST_BYTES = 1 << 22, 1 << 32


@dataclass(frozen=True)
class NotATensor:
    """A result that is no tensor, or one that has no strides."""

    name: str


class Ended(BaseException):
    """The other process has closed the connection. No check may take it for an error of its own."""


class BrokenAnswer(BaseException):
    """The other process sent a malformed answer; the text describes it."""


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in shared memory."""

    offset: int
    bytes_stored: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    is_conjugated: bool

    def tensor_in(self, memory: mmap.mmap) -> torch.Tensor:
        tensor = torch.empty(0, dtype=self.dtype)
        if self.bytes_stored:
            stored = torch.frombuffer(memory, dtype=torch.uint8, count=self.bytes_stored, offset=self.offset)
            tensor.set_(stored.untyped_storage(), self.storage_offset, self.shape, self.strides)
        else:
            tensor = torch.empty_strided(self.shape, self.strides, dtype=self.dtype)
        return tensor.conj() if self.is_conjugated else tensor


def _mapped(file: int) -> mmap.mmap:
    """A file in memory. Raises MemoryError if there is not enough of it."""
    try:
        return mmap.mmap(file, 0)
    except OSError as error:
        raise MemoryError(str(error)) from error


@dataclass(frozen=True)
class Shared:
    """Values whose tensors lie in memory that another process can map.

    Attributes:
        values: nests of tensors and of values that can be pickled, in this process.
        file: the memory's file descriptor, which the receiver closes.
    """

    values: Any
    description: bytes
    file: int

    @staticmethod
    def copy_of(values: Any) -> Shared:
        """A copy in new memory, with the tensors' layouts and what lies around their elements."""
        tensors = tree.tensors(values)
        places, size = [], 0
        for t in tensors:
            stored = t.untyped_storage().nbytes()  # an empty tensor may have one, too
            strides, conjugated = tuple(t.stride()), t.is_conj()
            places.append(_Place(size, stored, t.dtype, tuple(t.shape), strides, int(t.storage_offset()), conjugated))
            size += -(-stored // _ALIGNMENT) * _ALIGNMENT
        file = os.memfd_create("opwright")
        try:
            os.ftruncate(file, max(size, mmap.PAGESIZE))
            memory = _mapped(file)
        except BaseException:
            os.close(file)
            raise
        copies = [place.tensor_in(memory) for place in places]
        for copy, tensor in zip(copies, tensors, strict=True):
            if tensor.untyped_storage().nbytes():
                same_layout_copy(tensor, storage=copy.untyped_storage())
        remaining = iter(places)
        description = cloudpickle.dumps(tree.map_tensors(lambda _: next(remaining), values))
        remaining_copies = iter(copies)
        return Shared(tree.map_tensors(lambda _: next(remaining_copies), values), description, file)

    @staticmethod
    def received(description: bytes, file: int) -> Any:
        """The values, in the process that maps the memory."""
        try:
            memory = _mapped(file)
        finally:
            os.close(file)
        values = pickle.loads(description)  # the asking process has written it
        return tree.map_only(_Place, lambda place: place.tensor_in(memory), values)


class Connection:
    """One end of the connection between the two processes."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    # -- in the process that asks

    def send_bytes(self, data: bytes) -> None:
        self._send(_LENGTH.pack(len(data)) + data)

    def ask(self, kind: str, values: Any) -> Any:
        """Send a question with some values. Returns their copies, which the other process may write."""
        shared = Shared.copy_of(values)
        try:
            question = cloudpickle.dumps((kind, shared.description))
            try:
                socket.send_fds(self._socket, [_LENGTH.pack(len(question))], [shared.file])
            except OSError as error:
                raise Ended from error
            self._send(question)
        finally:
            os.close(shared.file)
        return shared.values

    def receive_answer(self) -> tuple[Any, bytes]:
        """The JSON and the bytes of the next answer."""
        header_bytes, payload_bytes = _LENGTHS.unpack(self._receive(_LENGTHS.size))
        if header_bytes > _LONGEST_HEADER or payload_bytes > _MOST_BYTES:
            raise BrokenAnswer(f"{header_bytes + payload_bytes} bytes")
        header = self._receive(header_bytes)
        payload = self._receive(payload_bytes)
        try:
            return json.loads(header), payload
        except ValueError as error:
            raise BrokenAnswer(f"a malformed answer ({type(error).__name__})") from error

    # -- in the process that answers

    def receive_bytes(self) -> bytes:
        return self._receive(*_LENGTH.unpack(self._receive(_LENGTH.size)))

    def receive_question(self) -> tuple[str, Any]:
        """The kind of the next question, and its values."""
        length, files, _, _ = socket.recv_fds(self._socket, _LENGTH.size, 1)
        if not length:
            raise Ended
        length += self._receive(_LENGTH.size - len(length))
        kind, description = pickle.loads(self._receive(*_LENGTH.unpack(length)))
        return kind, Shared.received(description, files[0])

    def answer(self, header: Mapping[str, Any], payload: Sequence[Any] = ()) -> None:
        text = json.dumps(header).encode()
        self._send(_LENGTHS.pack(len(text), sum(len(part) for part in payload)) + text)
        for part in payload:
            self._send(part)

    # -- both

    def _send(self, data: Any) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Ended from error

    def _receive(self, size: int) -> bytes:
        data = bytearray(size)
        view, received = memoryview(data), 0
        while received < size:
            try:
                count = self._socket.recv_into(view[received:])
            except OSError as error:
                raise Ended from error
            if not count:
                raise Ended
            received += count
        return bytes(data)


def write_tensors(results: Sequence[Any]) -> tuple[list[Any], list[memoryview]]:
    """The description of some results in JSON, and their bytes: elements in order, from whatever device."""
    described: list[Any] = []
    payload = []
    for result in results:
        if result is None:
            described.append(None)
        elif isinstance(result, NotATensor):
            described.append({"is": result.name})
        else:
            described.append({"dtype": str(result.dtype).removeprefix("torch."), "shape": list(result.shape)})
            payload.append(element_bytes(result.cpu()).numpy().data)
    return described, payload


def read_tensors(described: Sequence[Any], payload: bytes) -> list[torch.Tensor | NotATensor | None]:
    """The reverse of ``write_tensors``. Raises BrokenAnswer if description and bytes do not fit together."""
    found: list[torch.Tensor | NotATensor | None] = []
    offset = 0
    try:
        for one in described:
            if one is None:
                found.append(None)
            elif "is" in one:
                found.append(NotATensor(str(one["is"])))
            else:
                dtype, shape = dtype_named(one["dtype"]), [int(n) for n in one["shape"]]
                size = math.prod(shape) * dtype.itemsize
                if min([0, *shape]) < 0 or offset + size > len(payload):
                    raise ValueError("a tensor past the end of what was sent")
                part = bytearray(payload[offset : offset + size])
                offset += size
                if size:
                    found.append(torch.frombuffer(part, dtype=torch.uint8).view(dtype).view(shape))
                else:
                    found.append(torch.empty(shape, dtype=dtype))
    except (TypeError, ValueError, KeyError, RuntimeError, OverflowError) as error:
        raise BrokenAnswer(f"a malformed tensor ({error})") from error
    return found


def dtype_named(name: Any) -> torch.dtype:
    """A dtype by its name in torch. Raises ValueError if there is none."""
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no dtype {name!r}")
    return found
