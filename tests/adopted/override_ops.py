"""Overrides of ATen operators, right and wrong ones."""

from __future__ import annotations

import torch

import opwright as ow

A, B = torch.randn(4, 5, 3), torch.randn(4, 3, 6)
X = torch.randn(6, 7)


def outer(self, mat2):
    return self * mat2


def is_outer(self, mat2):
    return self.shape[2] == 1


def is_narrow(self, mat2):
    return self.shape[2] <= 2


def product(self, mat2):
    return torch.einsum("bij,bjk->bik", self, mat2)


def wrong_product(self, mat2):
    return 1.01 * torch.einsum("bij,bjk->bik", self, mat2)


def fraction(self):
    return self - self.trunc()


def above_floor(self):
    return self - self.floor()


def as_if_contiguous(self):
    dense = torch.as_strided(self, self.shape, torch.empty(self.shape).stride())
    return dense - dense.trunc()


def is_contiguous(self):
    return self.is_contiguous()


def raises(self):
    raise RuntimeError("the condition broke")


def never(self):
    return False


def _adopted(name, function, inputs=(X,), of=torch.ops.aten.frac, **options):
    return ow.adopt(of, implementation=function, inputs=inputs, name=f"overrides::{name}", **options)


right = _adopted("right", fraction)
wrong = _adopted("wrong", above_floor)
within_its_condition = _adopted("within_its_condition", as_if_contiguous, condition=is_contiguous)
without_its_condition = _adopted("without_its_condition", as_if_contiguous)
raising = _adopted("raising", fraction, condition=raises)
never_runs = _adopted("never_runs", fraction, condition=never)
narrow = _adopted("narrow", outer, condition=is_outer, inputs=(A, B), of=torch.ops.aten.bmm)
too_wide = _adopted("too_wide", outer, condition=is_narrow, inputs=(A, B), of=torch.ops.aten.bmm)
both = _adopted("both", outer, condition=is_outer, fallback=wrong_product, inputs=(A, B), of=torch.ops.aten.bmm)
