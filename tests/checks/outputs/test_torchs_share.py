"""Torch's share of the time of a call, as the check "own work" says it."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
import torch

from opwright.checks.outputs.own_work import MOVES
from opwright.checks.outputs.torchs_share import _LIBRARIES, share_in_words

X = torch.rand(400, 400)


def share_of(call):
    words = share_in_words(call, "cpu", moves=MOVES)
    return int(re.match(r"(\d+) % of CPU time", words)[1]), words


def test_what_torch_computes_counts_and_what_moves_does_not():
    share, words = share_of(lambda: torch.softmax(X @ X @ X, 1))
    assert share > 60
    assert "aten::mm" in words
    assert share_of(lambda: X.clone().contiguous())[0] == 0


def test_what_else_takes_time_is_none_of_torchs():
    def slow_elsewhere():
        time.sleep(0.05)
        np.sin(X.numpy())
        return X + 1

    assert share_of(slow_elsewhere)[0] < 70  # two busy cores may slow an addition down


def test_an_operator_within_another_counts_once():
    model = torch.nn.Sequential(torch.nn.Linear(400, 400), torch.nn.ReLU())
    share, words = share_of(lambda: model(X))
    assert share <= 100
    named = [int(n) for n in re.findall(r"(\d+) %", words.partition("(")[2])]
    assert sum(named) <= share + 2  # each is rounded


def test_without_times_nothing_is_said():
    def raising():
        raise ValueError("no")

    assert share_in_words(raising, "cpu", moves=MOVES) == ""


@pytest.mark.parametrize(
    ("kernel", "library"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "cuBLAS"),
        ("ampere_sgemm_128x64_nn", "cuBLAS"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "cuBLAS"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n", "cuBLAS"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32", "cuDNN"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW", "cuDNN"),
        ("my_gemm_kernel", ""),
        ("matmul_kernel", ""),
        ("void cutlass::Kernel2<my_gemm>", ""),  # may be the candidate's own
    ],
)
def test_kernels_of_libraries_are_known_by_their_names(kernel, library):
    assert next((name for name, known in _LIBRARIES.items() if known.search(kernel)), "") == library
