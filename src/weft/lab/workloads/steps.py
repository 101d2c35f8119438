"""A workload's device, and the two common kinds of step: training and inference."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn


class DevicePlace:
    """The device of a workload, its number format, and the source of random data."""

    def __init__(self, device: str, seed: int = 1) -> None:
        """Select the device; `RuntimeError` if PyTorch does not have it."""
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device here")
        # cuDNN's search times algorithms: with neighbours on the GPU it could pick different ones.
        torch.backends.cudnn.benchmark = False

    def put(self, module: nn.Module) -> nn.Module:
        """Move the module to the device."""
        return module.to(self.device)

    def numbers(self, *shape: int) -> torch.Tensor:
        """Return normally distributed numbers."""
        return torch.randn(*shape, device=self.device)

    def indexes(self, below: int, *shape: int) -> torch.Tensor:
        """Return whole numbers from 0 to `below` - 1."""
        return torch.randint(below, shape, device=self.device)

    def half(self) -> Any:
        """Return a context that computes products in bfloat16 on a GPU. On a CPU, which lacks some
        bfloat16 products, the context has no effect."""
        return torch.autocast("cuda", dtype=torch.bfloat16) if self.on_gpu else nullcontext()

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak_mib(self) -> int:
        """Return the most memory that PyTorch reserved on the GPU, in MiB; 0 on a CPU."""
        return int(torch.cuda.max_memory_reserved() >> 20) if self.on_gpu else 0


Loss = Callable[[], torch.Tensor]


def training(modules: Sequence[nn.Module], loss: Loss, place: DevicePlace) -> Callable[[], None]:
    """Return a step that computes the loss and its gradients and updates the weights."""
    weights = [weight for module in modules for weight in module.parameters()]
    optimizer = torch.optim.SGD(weights, lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with place.half():
            value = loss()
        value.backward()
        optimizer.step()

    return step


def inference(
    module: nn.Module, inputs: Sequence[torch.Tensor], place: DevicePlace
) -> Callable[[], None]:
    """Return a step that runs the module forward and waits for the device."""
    module.eval()

    def step() -> None:
        with torch.inference_mode(), place.half():
            module(*inputs)
        place.wait()

    return step
