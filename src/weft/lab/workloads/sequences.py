"""Workloads whose bottleneck is not arithmetic: recurrent steps, graph edges, input."""

import torch
from torch import nn
from torch.nn import functional

from weft.lab.workloads.catalog import Sizes, Step
from weft.lab.workloads.steps import DevicePlace, training

CLASSES = 100


def lstm_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step of an LSTM, one position after another, without fused library calls.

    It runs in float32: PyTorch before 2.3 lacks this cell in bfloat16 on a GPU, and launches are
    the bottleneck anyway."""
    width, length = sizes["width"], sizes["length"]
    cell, last = place.put(nn.LSTMCell(width, width)), place.put(nn.Linear(width, CLASSES))
    sequences = place.numbers(length, sizes["batch"], width)
    classes = place.indexes(CLASSES, sizes["batch"])

    def loss() -> torch.Tensor:
        state = None
        with torch.autocast(place.device.type, enabled=False):
            for position in sequences:
                state = cell(position, state)
            assert state is not None
            return functional.cross_entropy(last(state[0]), classes)

    return training([cell, last], loss, place)


def graph_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step on a random graph: it sums at each node the features of the nodes from
    which edges lead there."""
    nodes, width = sizes["nodes"], sizes["width"]
    layers = [place.put(nn.Linear(width, width)) for _ in range(2)]
    features = place.numbers(nodes, width)
    sources, ends = place.indexes(nodes, 2, sizes["edges"]).unbind(0)
    classes = place.indexes(width, nodes)

    def loss() -> torch.Tensor:
        hidden = features
        for layer in layers:
            sent = layer(hidden).float()
            hidden = torch.zeros_like(sent).index_add(0, ends, sent[sources])
        return functional.cross_entropy(hidden, classes)

    return training(layers, loss, place)


def input_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step on images that the CPU prepares for each step, in the same thread."""
    side, width = sizes["side"], sizes["width"]
    network = place.put(
        nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, CLASSES),
        )
    )
    stored = torch.randint(256, (sizes["batch"], 3, side + 32, side + 32), dtype=torch.uint8)
    classes = place.indexes(CLASSES, sizes["batch"])

    def loss() -> torch.Tensor:
        return functional.cross_entropy(network(_prepared(stored, side).to(place.device)), classes)

    return training([network], loss, place)


def _prepared(stored: torch.Tensor, side: int) -> torch.Tensor:
    """Crop, flip half of the time, and normalise images, as a data loader does."""
    left, top = (int(chosen) for chosen in torch.randint(32, (2,)))
    images = stored[:, :, top : top + side, left : left + side].float().div_(255)
    turned = images.flip(3) if bool(torch.rand(()) < 0.5) else images
    return (turned - turned.mean((2, 3), keepdim=True)) / (turned.std((2, 3), keepdim=True) + 1e-5)
