"""The places that a run of a function reads, and a module with places of many kinds."""

from __future__ import annotations

import torch
from torch import nn

from opwright.runtime.cuda_graphs.places_search import find_places
from opwright.runtime.cuda_graphs.reads import observing

X = torch.ones(4, 3)


def places_of(function, *args, known=(), device=None):
    args = args or (X.clone(),)
    function(*args)  # one-time work
    with observing(args) as reads:
        function(*args)
    return find_places("f", function, reads, known, device)


def assert_noticed(places, assign, label=None):
    assert places.hold()
    assign()
    assert not places.hold()
    if label is not None:
        assert places.change() == label


class Scale(nn.Module):
    """Reads a plain attribute, a tensor that is no buffer, a list, and a nested module."""

    unread = 1

    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.mask = torch.ones(3)
        self.parts = [torch.ones(3), {"bias": torch.zeros(3)}]
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))
        self.counter = 0

    def forward(self, x):
        return self.inner(x) * self.scale * self.mask + self.parts[0] + self.parts[1]["bias"]
