"""Previews the annotations, labels and environment of a pod that is not placed yet.

The dialects write real annotations for an invented node with unmistakable numbers, which are then
replaced by names such as `<gpu index>`.
"""

import re

from msgspec.structs import replace

from weft.dialects.dialect import PodAnnotations
from weft.dialects.registry import write
from weft.dialects.shares import placement_of
from weft.model import Gpu, Node, PodRequest, Share

# No real index, size or time begins like these; the GPUs' indexes count up from the first.
_GPU = 9_100_000_000
_CARD_UNITS = 9_200_000_000
_SHARE_MIB = 9_300_000_000
_SECONDS = 9_400_000_000
_NODE = "<node>"
_UUID = "<gpu uuid>"

# Enough to show the form; a pod that asks for a thousand GPUs is shown with these.
_MOST_GPUS = 16

_STANDS_FOR = (
    (re.compile(r"9400000000\d{9}"), "<time in ns>"),
    (re.compile(r"9400000000"), "<time in s>"),
    (re.compile(r"91000000\d\d"), "<gpu index>"),
    (re.compile(r"92000000\d\d"), "<units of the card>"),
    # Also what a percentage of the invented card comes to.
    (re.compile(r"(?<!\d)\d{8,10}(?!\d)"), "<MiB on the card>"),
)
# Hashes of the decision, so they say nothing yet.
_OPAQUE = ("GPU", "ALNAIR_ID")


def preview(request: PodRequest) -> PodAnnotations:
    """Return annotations, labels and environment, with `<…>` for what depends on the placement."""
    shares: list[Share] = []
    gpus: list[Gpu] = []
    for index, gpu_request in enumerate(request.shape.gpu_requests):
        memory = gpu_request.memory
        fixed = memory.kind in ("mib", "none") and not gpu_request.whole and not gpu_request.split
        for _ in range(min(gpu_request.count, _MOST_GPUS)):
            gpu = Gpu(index=_GPU + len(gpus), memory_mib=_CARD_UNITS * memory.unit_mib, uuid=_UUID)
            gpus.append(gpu)
            mib = memory.mib_on(gpu.memory_mib) if fixed else _SHARE_MIB
            shares.append(
                Share(
                    index, gpu.index, mib, 1000 if gpu_request.whole else gpu_request.milli, _UUID
                )
            )
    node = Node(_NODE, gpus=tuple(gpus))
    placement = placement_of(replace(request, uid="<pod uid>"), node, shares)
    written = write(request, placement, node, _SECONDS * 10**9)
    return PodAnnotations(
        annotations=_named(written.annotations),
        labels=_named(written.labels),
        env={container: _named(env) for container, env in written.env.items()},
    )


def _named(values: dict[str, str]) -> dict[str, str]:
    return {name: "<id>" if name in _OPAQUE else _name(value) for name, value in values.items()}


def _name(value: str) -> str:
    for pattern, meaning in _STANDS_FOR:
        value = pattern.sub(meaning, value)
    return value
