"""Kernels and a GPU's driver as tests of native calls need them, and plans for them."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from opwright.backends.native.native_call import (
    ArgumentSource,
    KernelArgument,
    Library,
    NativeCall,
    NativeCalls,
    Output,
)
from opwright.backends.native.tensor_access import address_of
from opwright.errors import LaunchError
from opwright.machine import this_machine

CPU = torch.device("cpu")
OUT = KernelArgument(ArgumentSource.OUTPUT, 0)
X, Y = KernelArgument(ArgumentSource.TENSOR, 0), KernelArgument(ArgumentSource.TENSOR, 1)

# Entries as Mojo's compiler makes them, and a driver that keeps what it was asked to launch.
KERNELS = """
#include <cstdint>
#include <cstring>
#include <unistd.h>

extern "C" {
typedef const int64_t* Numbers;
int64_t seen[64];

int32_t keep_words(Numbers words, Numbers, char*, int64_t) {
  std::memcpy(seen, words, 8 * 7);
  return 0;
}
int32_t add(Numbers words, Numbers sizes, char*, int64_t) {
  for (int64_t i = 0; i < sizes[0]; ++i) ((float*)words[0])[i] = ((float*)words[1])[i] + ((float*)words[2])[i];
  return 0;
}
int32_t wait(Numbers, Numbers, char*, int64_t) { usleep(200000); return 0; }
int32_t complain(Numbers, Numbers, char* message, int64_t message_size) {
  std::memset(message, '!', message_size);
  std::memcpy(message, "too hot", 7);
  return 7 + 1;
}
int32_t complain_at_length(Numbers, Numbers, char* message, int64_t message_size) {
  std::memset(message, '!', message_size);
  return message_size + 1;
}

int64_t launched[9];
int32_t refusal;
int cuLaunchKernel(void* kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void**) {
  const int64_t all[] = {(int64_t)kernel, x, y, z, bx, by, bz, shared, (int64_t)stream};
  std::memcpy(launched, all, sizeof(all));
  if (refusal) return refusal;
  int64_t words[4];
  for (int i = 0; i < 4; ++i) words[i] = *(int64_t*)parameters[i];
  return add(words, &words[3], nullptr, 0);
}
int keep_parameters(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                    void** parameters, void**) {
  for (int i = 0; i < 7; ++i) seen[i] = *(int64_t*)parameters[i];
  return 0;
}
int32_t current_stream(int32_t, void** stream) { *stream = (void*)77; return 0; }
int32_t device_now;
int32_t current_device(int32_t* device) { *device = device_now; return 0; }
int32_t opwright_entry(Numbers words, Numbers sizes, char* message, int64_t message_size) {
  if (((float*)words[1])[0] < 0) return complain(words, sizes, message, message_size);
  for (int64_t i = 0; i < sizes[0]; ++i) ((float*)words[0])[i] = FACTOR * ((float*)words[1])[i];
  return 0;
}
}
"""


def compiled(folder: Path, factor: int = 2) -> Path:
    (folder / "kernels.cpp").write_text(KERNELS)
    file = folder / f"kernels{factor}.so"
    compiler = this_machine().cxx
    assert compiler is not None  # the tests need it
    flags = ["-shared", "-fPIC", f"-DFACTOR={factor}"]
    subprocess.run([compiler.path, *flags, str(folder / "kernels.cpp"), "-o", str(file)], check=True)
    return file


class LeftToPython(Exception):
    """What calls get that were left to Python."""


def fallback(*arguments: Any) -> Any:
    raise LeftToPython(arguments)


def raise_launch_error(output: bytes) -> None:
    raise LaunchError(output.decode())


def call_like(
    function: Any, passed: Sequence[KernelArgument] = (OUT, X, Y), arguments: int = 2,
    shapes: Sequence[tuple[int, ...]] = ((5,),), sizes: Sequence[int] = (5,), **changed: Any,
) -> NativeCall:  # fmt: skip
    outputs = tuple(Output(shape, torch.float32) for shape in shapes)
    runs = Library(address_of(function), tuple(sizes), raise_launch_error)
    description = NativeCall(arguments, outputs, len(outputs) > 1, tuple(passed), CPU, runs, fallback)
    return dataclasses.replace(description, **changed)


def function_for(native: NativeCalls, description: NativeCall) -> Callable[..., Any]:
    made = native.function_for(description)
    assert made is not None
    return made
