"""A workload's device, and the two kinds of step that most of them are: training, inference."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn


class DevicePlace:
    """The device, the way numbers are kept there, and the chance that data is drawn by."""

    def __init__(self, device: str, seed: int = 1) -> None:
        """`RuntimeError` where PyTorch has no such device."""
        torch.manual_seed(seed)
        self.device = torch.device(device)
        self.on_gpu = self.device.type == "cuda"
        if self.on_gpu and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device here")
        # The fastest algorithm is searched for by timing: beside another it might be another one.
        torch.backends.cudnn.benchmark = False

    def put(self, module: nn.Module) -> nn.Module:
        """The module on the device."""
        return module.to(self.device)

    def numbers(self, *shape: int) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(*shape, device=self.device)

    def indexes(self, below: int, *shape: int) -> torch.Tensor:
        """Whole numbers from 0."""
        return torch.randint(below, shape, device=self.device)

    def half(self) -> Any:
        """A context in which products are made in bfloat16; not on a CPU, which lacks some."""
        return torch.autocast("cuda", dtype=torch.bfloat16) if self.on_gpu else nullcontext()

    def wait(self) -> None:
        """Until the device has done all that it was told."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak_mib(self) -> int:
        """The most memory that PyTorch held there, MiB; 0 on a CPU."""
        return int(torch.cuda.max_memory_reserved() >> 20) if self.on_gpu else 0


Loss = Callable[[], torch.Tensor]


def training(modules: Sequence[nn.Module], loss: Loss, place: DevicePlace) -> Callable[[], None]:
    """Forward, backward, an optimiser's step."""
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
    """Forward alone; who asked waits for the answer."""
    module.eval()

    def step() -> None:
        with torch.inference_mode(), place.half():
            module(*inputs)
        place.wait()

    return step
