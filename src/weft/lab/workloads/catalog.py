"""Declares every workload: its kind, its bottleneck, its batch size, and the memory it takes.

`build` is "module:function" within this package; the function takes a `DevicePlace` and sizes, and
returns a step. Each workload has sizes for a GPU, and tiny ones to try it on a CPU."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["training", "inference", "kernels"]
MemoryClass = Literal["small", "medium", "large"]
Sizes = Mapping[str, int]
Step = Callable[[], object]
"""One iteration; its return value is ignored."""

MEMORY_MIB: dict[MemoryClass, int] = {"small": 4_096, "medium": 12_288, "large": 24_576}
"""Upper limit of GPU memory in MiB by class, including CUDA's own."""


class Workload(NamedTuple):
    """One workload. `bound_by` is the bottleneck that it was designed for."""

    name: str
    kind: Kind
    bound_by: str
    batch: int
    memory: MemoryClass
    build: str
    sizes: Sizes
    tiny: Sizes
    needs_pytorch: bool = True

    def make(self, place: Any, tiny: bool) -> Step:
        """Build the workload's step, ready to be called; `ImportError` without PyTorch."""
        module, _, function = self.build.partition(":")
        make = getattr(importlib.import_module(f"weft.lab.workloads.{module}"), function)
        step: Step = make(place, self.tiny if tiny else {"batch": self.batch, **self.sizes})
        return step


_IMAGE = {"side": 224, "width": 64}
_TINY_IMAGE = {"batch": 2, "side": 32, "width": 8}
_TEXT = {"layers": 8, "width": 768, "heads": 12, "length": 512}
_TINY_TEXT = {"batch": 2, "layers": 1, "width": 32, "heads": 4, "length": 16}
_DECODER = {"layers": 16, "width": 2_048, "heads": 16, "length": 512}
_TABLES = {"tables": 16, "rows": 1_000_000, "width": 64, "lookups": 32}
_TINY_TABLES = {"batch": 8, "tables": 2, "rows": 100, "width": 8, "lookups": 4}
_TINY_PAINT = {"batch": 2, "side": 16, "width": 8}

WORKLOADS = (
    Workload("resnet-train", "training", "compute", 64, "medium", "cnns:resnet_training",
             _IMAGE, _TINY_IMAGE),
    Workload("resnet-infer-1", "inference", "launches", 1, "small", "cnns:resnet_inference",
             _IMAGE, _TINY_IMAGE),
    Workload("resnet-infer-64", "inference", "compute", 64, "small", "cnns:resnet_inference",
             _IMAGE, _TINY_IMAGE),
    Workload("mobilenet-train", "training", "memory", 64, "medium", "cnns:mobilenet_training",
             {"side": 224, "width": 32}, _TINY_IMAGE),
    Workload("mobilenet-infer-8", "inference", "launches", 8, "small", "cnns:mobilenet_inference",
             {"side": 224, "width": 32}, _TINY_IMAGE),
    Workload("conv3d-train", "training", "compute", 4, "medium", "cnns:volume_training",
             {"side": 64, "width": 32}, {"batch": 1, "side": 8, "width": 4}),
    Workload("encoder-train", "training", "compute", 16, "large", "transformers:encoder_training",
             _TEXT, _TINY_TEXT),
    Workload("encoder-infer-32", "inference", "compute", 32, "medium",
             "transformers:encoder_inference", _TEXT, _TINY_TEXT),
    Workload("decoder-train", "training", "compute", 4, "large", "transformers:decoder_training",
             {**_DECODER, "layers": 8}, _TINY_TEXT),
    Workload("decoder-infer-1", "inference", "memory", 1, "medium",
             "transformers:decoder_inference", _DECODER, _TINY_TEXT),
    Workload("decoder-infer-32", "inference", "memory", 32, "medium",
             "transformers:decoder_inference", _DECODER, _TINY_TEXT),
    Workload("dlrm-train", "training", "memory", 2_048, "medium", "recommenders:dlrm_training",
             _TABLES, _TINY_TABLES),
    Workload("dlrm-infer", "inference", "memory", 512, "medium", "recommenders:dlrm_inference",
             _TABLES, _TINY_TABLES),
    Workload("lstm-train", "training", "launches", 64, "small", "sequences:lstm_training",
             {"length": 128, "width": 512}, {"batch": 2, "length": 8, "width": 8}),
    Workload("graph-train", "training", "memory", 1, "medium", "sequences:graph_training",
             {"nodes": 400_000, "edges": 4_000_000, "width": 64},
             {"batch": 1, "nodes": 50, "edges": 200, "width": 8}),
    Workload("input-train", "training", "input", 64, "small", "sequences:input_training",
             {"side": 224, "width": 32}, {"batch": 2, "side": 16, "width": 4}),
    Workload("gan-train", "training", "compute", 64, "medium", "generative:gan_training",
             {"side": 64, "width": 64}, _TINY_PAINT),
    Workload("diffusion-infer", "inference", "compute", 4, "medium", "generative:diffusion_step",
             {"side": 64, "width": 128}, _TINY_PAINT),
    Workload("gemm-bf16", "kernels", "compute", 1, "small", "kernels:gemm",
             {"side": 8_192, "bits": 16}, {"batch": 1, "side": 32, "bits": 16}),
    Workload("gemm-fp32", "kernels", "compute", 1, "small", "kernels:gemm",
             {"side": 4_096, "bits": 32}, {"batch": 1, "side": 32, "bits": 32}),
    Workload("gemm-small-fp16", "kernels", "launches", 64, "small", "kernels:small_gemms",
             {"side": 256}, {"batch": 2, "side": 8}),
    Workload("elementwise", "kernels", "memory", 1, "small", "kernels:elementwise",
             {"mib": 512}, {"batch": 1, "mib": 1}),
    Workload("softmax", "kernels", "memory", 8_192, "small", "kernels:softmax",
             {"width": 16_384}, {"batch": 8, "width": 64}),
    Workload("tiny-kernels", "kernels", "launches", 1, "small", "kernels:tiny_kernels",
             {"launches": 500, "width": 1_024}, {"batch": 1, "launches": 10, "width": 16}),
    Workload("sort-scan", "kernels", "memory", 1, "small", "kernels:sort_and_scan",
             {"numbers": 1 << 24}, {"batch": 1, "numbers": 1 << 8}),
    Workload("copies", "kernels", "transfers", 1, "small", "kernels:copies",
             {"mib": 64}, {"batch": 1, "mib": 1}),
)  # fmt: skip # a table: one workload a row

BY_NAME: Mapping[str, Workload] = {workload.name: workload for workload in WORKLOADS}

_PERCEPTRON = Workload(
    "perceptron-infer",
    "inference",
    "compute",
    1,
    "small",
    "without_pytorch:perceptron_inference",
    {"layers": 4, "width": 256},
    {"batch": 1, "layers": 2, "width": 16},
    needs_pytorch=False,
)
ANSWERS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (*WORKLOADS, _PERCEPTRON)
    if workload.kind == "inference"
}
"""Workloads that answer queries; `perceptron-infer` needs neither PyTorch nor a GPU."""
