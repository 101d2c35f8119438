"""Writes nodes and pods in the form that `openb.py` reads: openb's columns and Weft's own."""

import csv
import io
from collections.abc import Iterable

from msgspec.structs import replace

from weft.lab.simulate import openb_own
from weft.lab.simulate.openb import (
    GPU_MEMORY,
    GPU_PERCENT,
    NODE_COLUMNS,
    POD_COLUMNS,
    TIME_COLUMNS,
    TracePod,
    node_of,
    shape_of,
)
from weft.model import GpuMemoryRequest, Node, Shape

Cell = str | int | float | None


def nodes_csv(nodes: Iterable[Node]) -> str:
    """Return a node list."""
    return _csv((*NODE_COLUMNS, GPU_MEMORY, openb_own.NODE), map(_node_row, nodes))


def pods_csv(pods: Iterable[TracePod]) -> str:
    """Return a pod list; times in whole seconds."""
    own = (GPU_MEMORY, GPU_PERCENT, "priority", "application", openb_own.POD)
    return _csv((*POD_COLUMNS, "gpu_spec", *TIME_COLUMNS, *own), map(_pod_row, pods))


def _node_row(node: Node) -> list[Cell]:
    first = node.gpus[0] if node.gpus else None
    model, memory = (first.model.strip(), first.memory_mib) if first else ("", None)
    said = node_of(node.name, node.cpu_milli, node.memory_mib, len(node.gpus), model, memory)
    cells = node.name, node.cpu_milli, node.memory_mib, len(node.gpus), model, memory
    return [*cells, openb_own.beyond(said, node)]


def _pod_row(pod: TracePod) -> list[Cell]:
    shape, request = pod.shape, next(iter(pod.shape.gpu_requests), None)
    gpus, milli, memory = 0, 0, GpuMemoryRequest()
    if request is not None and len(shape.gpu_requests) == 1:
        gpus, memory = request.count, GpuMemoryRequest(request.memory.kind, request.memory.value)
        milli = 1000 if request.whole else min(1000, request.milli)
        if memory.kind not in ("mib", "percent") or request.whole:
            memory = GpuMemoryRequest()
    elif request is not None:
        gpus, milli = pod.gpus, pod.milli
    rule = shape.devices
    spec = shape.trace_spec or ("|".join(rule.models) if rule.how == "exact" else "")
    said = shape_of(shape.cpu_milli, shape.memory_mib, gpus, milli, spec.strip(), memory)
    said = replace(said, application=shape.application.strip())
    mib, percent = (memory.value if memory.kind == kind else 0 for kind in ("mib", "percent"))
    cell = openb_own.beyond(said, _comparable(shape, said))
    if not cell and gpus and not memory.value and (not milli or (gpus > 1 and milli < 1000)):
        cell = openb_own.claims(shape)  # openb cannot express such pods
    return [
        *(pod.name, shape.cpu_milli, shape.memory_mib, gpus, milli, spec),
        *(
            None if at is None else int(at)
            for at in (pod.created_s, pod.deleted_s, pod.scheduled_s)
        ),
        *(mib or None, percent or None, pod.priority or None, shape.application),
        cell,
    ]


def _comparable(shape: Shape, said: Shape) -> Shape:
    """Return the shape with `said`'s raw trace models, which only matter in FGD's histogram."""
    return replace(shape, trace_spec=said.trace_spec)


def _csv(columns: tuple[str, ...], rows: Iterable[list[Cell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
