"""Single operations, each limited by one part of the GPU: arithmetic, memory, launches,
transfers."""

import torch

from weft.lab.workloads.catalog import Sizes, Step
from weft.lab.workloads.steps import DevicePlace

_MIB = 1 << 20


def gemm(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step that multiplies square matrices, in bfloat16 or in float32 without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    kind = torch.bfloat16 if sizes["bits"] == 16 else torch.float32
    left = place.numbers(sizes["side"], sizes["side"]).to(kind)
    right, out = place.numbers(sizes["side"], sizes["side"]).to(kind), torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def small_gemms(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step of many products too small to fill the GPU, in float16 on a GPU."""
    kind = torch.float16 if place.on_gpu else torch.float32
    side = sizes["side"]
    lefts = place.numbers(sizes["batch"], side, side).to(kind)
    right, out = place.numbers(side, side).to(kind), torch.empty_like(lefts)

    def step() -> None:
        for left, product in zip(lefts, out, strict=True):
            torch.mm(left, right, out=product)

    return step


def elementwise(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step that adds two arrays into a third, each of `mib` MiB."""
    left, right = (place.numbers(sizes["mib"] * _MIB // 4) for _ in range(2))
    out = torch.empty_like(left)
    return lambda: torch.add(left, right, out=out)


def softmax(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step that computes a softmax over rows."""
    rows = place.numbers(sizes["batch"], sizes["width"])
    return lambda: torch.softmax(rows, 1)


def tiny_kernels(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step of many launches of nearly empty kernels."""
    few, launches = place.numbers(sizes["width"]), sizes["launches"]

    def step() -> None:
        for _ in range(launches):
            few.mul_(1.0001)

    return step


def sort_and_scan(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step that sorts numbers, then computes their cumulative sum."""
    numbers = place.numbers(sizes["numbers"])
    return lambda: torch.cumsum(torch.sort(numbers).values, 0)


def copies(place: DevicePlace, sizes: Sizes) -> Step:
    """Return a step that copies to the GPU and back over PCIe, from pinned memory."""
    on_host = torch.randn(sizes["mib"] * _MIB // 4, pin_memory=place.on_gpu)
    on_device = torch.empty_like(on_host, device=place.device)

    def step() -> None:
        on_device.copy_(on_host, non_blocking=True)
        on_host.copy_(on_device, non_blocking=True)
        place.wait()

    return step
