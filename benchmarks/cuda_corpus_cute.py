"""The cases of ``cuda_corpus_values.py`` with CuTe: kernels of notes on CUTLASS, and of CUTLASS's own tutorials."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import opwright as ow


@dataclass
class Case:
    """One kernel with arguments of one size: ``launch`` returns what it computed and what it should have."""

    file: str
    kernel: str
    size: str
    launch: Callable[[Any], tuple[torch.Tensor, torch.Tensor]]
    options: tuple[str, ...] = ()


def cute_cases() -> Iterator[Case]:
    """Products with CuTe, from one instruction of tensor cores to tiles that are copied to swizzled shared memory."""
    half, mixed = ", ".join(["cute::half_t"] * 4), "float, cute::bfloat16_t, cute::bfloat16_t, float"
    notes = "BBuf/cutlass/code/cutlass-notes"
    minimal = "minimal_gemm<spec::KernelSpec<cute::half_t>, true>"
    yield Case(f"{notes}/01-minimal-gemm/minimal_gemm.cu", minimal, "16x8x8", cute((16, 8, 8), 32, torch.float16))
    for folder, types, sizes in (
        ("03-tiled-mma", mixed, (32, 32, 16)),
        ("04-tiled-copy", mixed, (32, 32, 16)),
        ("05-block-mma", mixed, (128, 128, 64)),
        ("06-block-copy", mixed, (128, 128, 64)),
        ("07-swizzling", half, (128, 128, 64)),
    ):
        name = folder[3:].replace("-", "_")
        kernel = f"{name}<spec::KernelSpec<{types}, {', '.join(map(str, sizes))}>, true, false>"
        dtype = torch.float16 if types == half else torch.bfloat16
        launch = cute(sizes, 256, dtype, torch.float16 if types == half else torch.float32, None)
        yield Case(f"{notes}/{folder}/{name}.cu", kernel, "x".join(map(str, sizes)), launch)
    kernel = f"pipelining<spec::KernelSpec<{half}, 128, 128, 64, 3>, true, false>"
    for sizes in ((128, 128, 192), (120, 104, 168)):
        launch = cute(sizes, 256, torch.float16, torch.float16, None)
        yield Case(f"{notes}/09-pipelining/pipelining.cu", kernel, "x".join(map(str, sizes)), launch)


def cute(
    sizes: tuple[int, ...], threads: int, dtype: torch.dtype, of_result: torch.dtype | None = None, *more: Any
) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
    def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        m, n, k = sizes
        # Whole numbers whose sums are exact in half.
        a, b = torch.randint(-3, 4, (m, k)).to(dtype), torch.randint(-3, 4, (n, k)).to(dtype)
        c = torch.zeros(m, n, dtype=of_result or dtype)
        run[1, threads, 96 << 10](c, a, b, m, n, k, *more)
        return c, (a.double() @ b.double().T).to(c.dtype)

    return launch


class Ints(ctypes.Structure):
    """Three sizes of a problem, as CuTe's ``Shape<int, int, int>``."""

    _fields_ = (("values", ctypes.c_int * 3),)


class Stride(ctypes.Structure):
    """A stride beside one that is the constant 1."""

    _fields_ = (("value", ctypes.c_int),)


class Empty(ctypes.Structure):
    """Of a CuTe type whose values are all constants."""

    _fields_ = (("nothing", ctypes.c_char),)


@dataclass
class Tutorial:
    """What CUTLASS's tutorial for CuTe gives its kernel: types that its host code deduces, written out.

    Attributes:
        transposed: whether the second dimension of a and b is the one that lies together.
        atoms: the type of what copies from shared memory; none if the kernel has no such parameters.
    """

    tile: tuple[int, int, int]
    dtype: str
    shared: str
    copies: str
    threads: str
    transposed: bool = False
    atoms: str = ""
    block: int = 256
    shared_bytes: int = 0

    def instance(self) -> str:
        m, n, _ = self.tile
        stride = "cute::Stride<int, cute::_1>" if self.transposed else "cute::Stride<cute::_1, int>"
        of_one = [self.dtype, stride, self.shared, self.copies, *([self.atoms] if self.atoms else [])]
        of_c = [self.dtype, "cute::Stride<cute::_1, int>", layout(m, n), self.threads, "float", "float"]
        return f"gemm_device<{', '.join(['cute::Shape<int, int, int>', shape(*self.tile), *of_one, *of_one, *of_c])}>"

    def launch(self, k: int) -> Callable[[Any], tuple[torch.Tensor, torch.Tensor]]:
        def launch(run: Any) -> tuple[torch.Tensor, torch.Tensor]:
            m, n, dtype = 2 * self.tile[0], self.tile[1], torch.float32 if self.dtype == "float" else torch.float16
            a, b = torch.randint(-3, 4, (k, m)).to(dtype), torch.randint(-3, 4, (k, n)).to(dtype)
            c, wanted = torch.zeros(n, m, dtype=dtype), (a.double().T @ b.double()).T.to(dtype)
            strides = [Stride(k)] * 2 if self.transposed else [Stride(m), Stride(n)]
            given = (a.T.contiguous(), b.T.contiguous()) if self.transposed else (a, b)
            nothing = [Empty()] * (3 if self.atoms else 2)
            operands = [x for t, s in zip(given, strides, strict=True) for x in (t, s, *nothing)]
            sizes = Ints((ctypes.c_int * 3)(m, n, k))
            run[(2, 1), self.block, self.shared_bytes](
                sizes, Empty(), *operands, c, Stride(m), Empty(), Empty(), 1.0, 0.0
            )
            return c, wanted

        return launch


def shape(*sizes: int) -> str:
    return f"cute::Shape<{', '.join(f'cute::_{size}' for size in sizes)}>"


def layout(*sizes: int) -> str:
    return f"cute::Layout<{shape(*sizes)}>"


def tutorial_cases() -> Iterator[Case]:
    """The products of CUTLASS's examples/cute/tutorial, with the types of their host code."""

    def of_threads(atom: str, threads: str, values: str) -> str:
        return f"decltype(cute::make_tiled_copy(cute::Copy_Atom<{atom}>{{}}, {threads}{{}}, {values}{{}}))"

    fma = f"decltype(cute::make_tiled_mma(cute::UniversalFMA<float, float, float>{{}}, {layout(16, 16, 1)}{{}}))"
    wide = of_threads("cute::UniversalCopy<cute::uint128_t>, float", layout(32, 8), layout(4, 1))
    stages = of_threads("cute::SM80_CP_ASYNC_CACHEALWAYS<cute::uint128_t>, float", layout(32, 8), layout(4, 1))
    by_rows = "cute::Layout<cute::Shape<cute::_16, cute::_8>, cute::Stride<cute::_8, cute::_1>>"
    halves = of_threads("cute::SM80_CP_ASYNC_CACHEALWAYS<cute::uint128_t>, cute::half_t", by_rows, layout(1, 8))
    swizzled = (
        "decltype(cute::tile_to_shape(cute::composition(cute::Swizzle<3, 3, 3>{}, cute::Layout<cute::Shape<cute::_8, "
        "cute::Shape<cute::_8, cute::_8>>, cute::Stride<cute::_8, cute::Stride<cute::_1, cute::_64>>>{}), "
        "cute::make_shape(cute::Int<128>{}, cute::Int<64>{}, cute::Int<3>{})))"
    )
    tensor_cores = (
        f"decltype(cute::make_tiled_mma(cute::SM80_16x8x16_F16F16F16F16_TN{{}}, {layout(2, 2)}{{}}, "
        "cute::Tile<cute::_32, cute::_32, cute::_16>{}))"
    )
    small, by_vectors = (128, 128, 8), "cute::Copy_Atom<cute::AutoVectorizingCopy, float>"
    for file, given, k in (
        ("sgemm_1.cu", Tutorial(small, "float", layout(128, 8), layout(32, 8), layout(16, 16)), 24),
        ("sgemm_2.cu", Tutorial(small, "float", layout(128, 8), wide, fma), 24),
        ("sgemm_sm80.cu",
         Tutorial(small, "float", layout(128, 8, 3), stages, fma, atoms=by_vectors,
                  shared_bytes=2 * 128 * 8 * 3 * 4), 40),
        ("sgemm_sm80.cu",
         Tutorial((128, 128, 64), "cute::half_t", swizzled, halves, tensor_cores, transposed=True,
                  atoms="cute::Copy_Atom<cute::SM75_U32x4_LDSM_N, cute::half_t>", block=128,
                  shared_bytes=2 * 128 * 64 * 3 * 2), 192),
    ):  # fmt: skip
        name = f"NVIDIA/examples/cute/tutorial/{file}"
        yield Case(name, given.instance(), f"{2 * given.tile[0]}x{given.tile[1]}x{k}", given.launch(k))


# --- Hopper ---


class Ones(ctypes.Structure):
    """Of a TiledMMA of warpgroups: whether it adds to its accumulators, and padding."""

    _fields_ = (("values", ctypes.c_int * 2),)


class TmaAtom:
    """CuTe's ``Copy_Atom`` of a tensor map: the map, and constants beside it."""

    def __init__(self, tensor: torch.Tensor, box: tuple[int, int]) -> None:
        self.tensor, self.map = tensor, ow.tensor_map(tensor, box, swizzle=128)

    def kernel_bytes(self, device: int) -> bytes:
        return self.map.kernel_bytes(device).ljust(192, b"\0")


@dataclass
class Hopper:
    """What examples/cute/tutorial/hopper gives its kernels.

    Attributes:
        by_rows: whether k lies together in a and b.
        by_tma: whether tiles are copied by tensor maps, else by cp.async.
    """

    by_rows: bool
    by_tma: bool

    def instance(self) -> str:
        major = "K" if self.by_rows else "MN"
        stride = "cute::Stride<int, cute::_1>" if self.by_rows else "cute::Stride<cute::_1, int>"
        atom = f"cute::SM90::GMMA::Layout_{major}_SW128_Atom<cute::half_t>{{}}"
        shared = (
            f"cute::tile_to_shape({atom}, cute::make_shape(cute::Int<128>{{}}, cute::Int<64>{{}}, cute::Int<3>{{}}))"
        )
        if self.by_tma:
            matrix = f"cute::make_tensor((const cute::half_t*)0, cute::make_shape(0, 0), {stride}{{}})"
            tile = f"{shared}(cute::_, cute::_, 0), cute::make_shape(cute::Int<128>{{}}, cute::Int<64>{{}})"
            atom = f"decltype(cute::make_tma_atom(cute::SM90_TMA_LOAD{{}}, {matrix}, {tile}))"
            operand = ["cute::half_t", f"decltype({shared})", atom]
        else:
            threads = "cute::Layout<cute::Shape<cute::_16, cute::_8>"
            threads += ", cute::Stride<cute::_8, cute::_1>>" if self.by_rows else ">"
            copied = "cute::Copy_Atom<cute::SM80_CP_ASYNC_CACHEALWAYS<cute::uint128_t>, cute::half_t>"
            values = layout(1, 8) if self.by_rows else layout(8, 1)
            copies = f"decltype(cute::make_tiled_copy({copied}{{}}, {threads}{{}}, {values}{{}}))"
            operand = ["cute::half_t", stride, f"decltype({shared})", copies]
        majors = ", ".join([f"cute::SM90::GMMA::Major::{major}"] * 2)
        product = f"decltype(cute::make_tiled_mma(cute::SM90_64x64x16_F16F16F16_SS<{majors}>{{}}))"
        of_c = ["cute::half_t", "cute::Stride<cute::_1, int>", product, "float", "float"]
        sizes = ["cute::Shape<int, int, int>", shape(128, 128, 64)]
        return f"gemm_device<{', '.join([*sizes, *operand, *operand, *of_c])}>"

    def launch(self, run: Any) -> tuple[torch.Tensor, torch.Tensor]:
        m, n, k = 256, 128, 320
        a, b = torch.randint(-3, 4, (m, k)).half(), torch.randint(-3, 4, (n, k)).half()
        c, wanted = torch.zeros(n, m).half(), (a.double() @ b.double().T).T.half()
        given = (a, b) if self.by_rows else (a.T.contiguous(), b.T.contiguous())
        sizes, adds = Ints((ctypes.c_int * 3)(m, n, k)), Ones((ctypes.c_int * 2)(1, 1))
        shared = 2 * 128 * 64 * 3 * 2
        if self.by_tma:
            operands = [x for t in given for x in (t, TmaAtom(t, (128, 64) if self.by_rows else (8, 64)))]
            barriers = 2 * 3 * 8
            kernel = run[(2, 1), 128, shared + barriers + 80, (2, 1, 1)]  # to a multiple of 128
        else:
            strides = [Stride(k)] * 2 if self.by_rows else [Stride(m), Stride(n)]
            operands = [x for t, s in zip(given, strides, strict=True) for x in (t, s, Empty(), Empty())]
            kernel = run[(2, 1), 128, shared]
        kernel(sizes, Empty(), *operands, c, Stride(m), adds, 1.0, 0.0)
        return c, wanted


def hopper_cases() -> Iterator[Case]:
    for by_tma in (True, False):
        for by_rows in (True, False):
            given = Hopper(by_rows, by_tma)
            name = f"NVIDIA/examples/cute/tutorial/hopper/wgmma_{'tma_' if by_tma else ''}sm90.cu"
            yield Case(name, given.instance(), "256x128x320", given.launch)
