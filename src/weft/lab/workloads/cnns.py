"""Convolutional networks: residual, depthwise separable, and three-dimensional."""

import torch
from torch import nn
from torch.nn import functional

from weft.lab.workloads.catalog import Sizes, Step
from weft.lab.workloads.steps import DevicePlace, inference, training

CLASSES = 1_000


class Residual(nn.Module):
    """Two convolutions with a skip connection, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.around = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Apply both convolutions to images, and add the skip connection."""
        return functional.relu(self.body(images) + self.around(images))


def _resnet(width: int) -> nn.Module:
    blocks = [Residual(width, width, 1)]
    for level in range(4):
        inputs = width << max(level - 1, 0)
        blocks += [
            Residual(inputs, width << level, 1 if level == 0 else 2),
            Residual(width << level, width << level, 1),
        ]
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width << 3, CLASSES),
    )


def _separable(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    """Return MobileNet's block: a depthwise, then a pointwise convolution."""
    return [
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]


def _mobilenet(width: int) -> nn.Module:
    layers = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    blocks = [(2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), *[(16, 1)] * 5, (32, 2), (32, 1)]
    for outputs, stride in blocks:
        layers += _separable(channels, outputs * width, stride)
        channels = outputs * width
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    return nn.Sequential(*layers, *head)


def _images(place: DevicePlace, sizes: Sizes) -> torch.Tensor:
    return place.numbers(sizes["batch"], 3, sizes["side"], sizes["side"])


def _learning(network: nn.Module, images: torch.Tensor, place: DevicePlace) -> Step:
    classes = place.indexes(CLASSES, images.shape[0])
    return training([network], lambda: functional.cross_entropy(network(images), classes), place)


def resnet_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step of an image classifier that is a residual network."""
    return _learning(place.put(_resnet(sizes["width"])), _images(place, sizes), place)


def resnet_inference(place: DevicePlace, sizes: Sizes) -> Step:
    """Return an inference step of an image classifier that is a residual network."""
    return inference(place.put(_resnet(sizes["width"])), [_images(place, sizes)], place)


def mobilenet_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step of an image classifier that is a depthwise separable network."""
    return _learning(place.put(_mobilenet(sizes["width"])), _images(place, sizes), place)


def mobilenet_inference(place: DevicePlace, sizes: Sizes) -> Step:
    """Return an inference step of an image classifier that is a depthwise separable network."""
    return inference(place.put(_mobilenet(sizes["width"])), [_images(place, sizes)], place)


def volume_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a training step of a classifier of volumes, such as those of a medical scanner."""
    width, side = sizes["width"], sizes["side"]
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [
            nn.Conv3d(inputs, outputs, 3, 1, 1),
            nn.BatchNorm3d(outputs),
            nn.ReLU(inplace=True),
            nn.MaxPool3d(2),
        ]
    head = nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES)
    network = place.put(nn.Sequential(*layers, *head))
    volumes = place.numbers(sizes["batch"], 1, side, side, side)
    return _learning(network, volumes, place)
