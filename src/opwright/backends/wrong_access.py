"""A program that reads past its memory on a GPU: compute-sanitizer has to say so, or it does not watch here.

It runs by its path and needs the driver's library alone.
"""

from __future__ import annotations

import ctypes

_PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry wrong_access(.param .u64 memory) {
  .reg .b64 %address;
  .reg .b32 %read;
  ld.param.u64 %address, [memory];
  ld.volatile.global.u32 %read, [%address+4];
  ret;
}
"""


def main() -> None:
    """Read four bytes past memory of four bytes."""
    driver = ctypes.CDLL("libcuda.so.1")
    context, module, function, memory = (ctypes.c_void_p() for _ in range(4))
    device = ctypes.c_int()

    def call(name: str, *arguments: object) -> None:
        if error := getattr(driver, name)(*arguments):
            raise SystemExit(f"{name} gives error {error}")

    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), _PTX)
    call("cuModuleGetFunction", ctypes.byref(function), module, b"wrong_access")
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4))
    parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(memory), ctypes.c_void_p))
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    driver.cuCtxSynchronize()  # compute-sanitizer ends the context here


if __name__ == "__main__":
    main()
