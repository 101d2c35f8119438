"""Image generators: a generative adversarial network, and a diffusion model's denoiser."""

import torch
from torch import nn
from torch.nn import functional

from weft.lab.workloads.catalog import Sizes, Step
from weft.lab.workloads.steps import DevicePlace, inference, training

NOISE = 128


def gan_training(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step that trains discriminator and generator in turn."""
    batch, side, width = sizes["batch"], sizes["side"], sizes["width"]
    painter = place.put(_painter(side, width))
    judge = place.put(_judge(side, width))
    real = place.numbers(batch, 3, side, side)
    yes, no = place.numbers(batch).fill_(1.0), place.numbers(batch).fill_(0.0)

    def judged(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(judge(images).squeeze(1).float(), labels)

    def painted() -> torch.Tensor:
        return painter(place.numbers(batch, NOISE))

    paints = training([painter], lambda: judged(painted(), yes), place)
    tells = training([judge], lambda: judged(real, yes) + judged(painted().detach(), no), place)

    def step() -> None:
        tells()
        paints()

    return step


def _painter(side: int, width: int) -> nn.Module:
    small = side // 4
    return nn.Sequential(
        nn.Linear(NOISE, 4 * width * small * small),
        nn.Unflatten(1, (4 * width, small, small)),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, 3, 4, 2, 1),
        nn.Tanh(),
    )


def _judge(side: int, width: int) -> nn.Module:
    small = side // 4
    return nn.Sequential(
        nn.Conv2d(3, 2 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(4 * width * small * small, 1),
    )


class Denoiser(nn.Module):
    """A small U-Net: down, across and up again, with a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.across = nn.Sequential(_block(2 * width), _block(2 * width))
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.behind = _block(2 * width)
        self.last = nn.Conv2d(2 * width, 3, 3, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Remove some of the noise from images."""
        wide = self.first(images)
        deep = self.across(self.down(wide))
        return images - 0.1 * self.last(self.behind(torch.cat([wide, self.up(deep)], 1)))


def _block(width: int) -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(4, width),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, 1, 1),
        nn.GroupNorm(4, width),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, 1, 1),
    )


def diffusion_step(place: DevicePlace, sizes: Sizes) -> Step:
    """Return an inference step that denoises images once."""
    noise = place.numbers(sizes["batch"], 3, sizes["side"], sizes["side"])
    return inference(place.put(Denoiser(sizes["width"])), [noise], place)
