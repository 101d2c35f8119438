"""Reads clusters and workloads in the openb format (Alibaba cluster-trace-gpu-v2023).

openb has GPU shares in thousandths of a GPU and no GPU memory, so each model gets its nominal
memory from `NOMINAL_MIB`; pods ask for no memory, and policies that rank by memory rank by cores.
Weft's own columns hold more, if `weft trace` wrote them (`openb_own.py`)."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from weft.files.reading import read_text
from weft.lab.simulate import openb_own
from weft.model import (
    BadInputError,
    DeviceRule,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    PodRequest,
    Shape,
)
from weft.model.nearest import nearest
from weft.model.number_text import whole_number

NOMINAL_MIB = {
    "P100": 16_280,
    "T4": 15_360,
    "V100M16": 16_160,
    "V100M32": 32_510,
    "A10": 23_028,
    "G1": 24_576,
    "G2": 24_576,
    "G3": 40_960,
}
"""MiB per model: what public models report, and a common size for the masked ones."""
OTHER_MIB = 16_384

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
GPU_MEMORY, GPU_PERCENT = "gpu_memory_mib", "gpu_memory_percent"
TIME_COLUMNS = ("creation_time", "deletion_time", "scheduled_time")
_OPTIONAL: dict[tuple[str, ...], tuple[str, ...]] = {
    NODE_COLUMNS: (GPU_MEMORY, openb_own.NODE),
    POD_COLUMNS: (
        *("gpu_spec", "application", "priority", GPU_MEMORY, GPU_PERCENT, openb_own.POD),
        *TIME_COLUMNS,
    ),
}
_MISSPELT, _MOST_LONGER = 0.85, 2
"""A name this similar, and at most this much longer or shorter, counts as a misspelt column."""


_NO_MEMORY = GpuMemoryRequest()


class TracePod(msgspec.Struct, frozen=True, gc=False):
    """One row of a pod list. Times are seconds from the trace's start, None if absent.

    `milli` is its request per GPU: cores, or the share of a GPU's memory if that is more. Pods of a
    recorded day have the whole `request`. A pod that was `withdrawn` never ran in the recording: it
    leaves at `deleted_s` (`later`), or at once if it is not placed at once (`at-once`)."""

    name: str
    shape: Shape
    gpus: int
    milli: int
    created_s: float | None = None
    deleted_s: float | None = None
    scheduled_s: float | None = None
    priority: int = 0
    request: PodRequest | None = None
    withdrawn: Literal["", "at-once", "later"] = ""

    @property
    def total_milli(self) -> int:
        """GPU milli summed over all its GPUs."""
        return self.gpus * self.milli


class _Row:
    """One CSV row, with its position for errors."""

    def __init__(self, path: Path, line: int, cells: dict[str, str]) -> None:
        self._path, self._line, self._cells = path, line, cells

    def text(self, column: str) -> str:
        return (self._cells.get(column) or "").strip()

    def number(self, column: str, low: int, high: int, *, optional: bool = False) -> int | None:
        text = self.text(column)
        if not text and optional:
            return None
        try:
            value = whole_number(text)
        except ValueError:
            raise self.error(column, f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise self.error(column, f"{value} is not between {low} and {high}")
        return value

    def count(self, column: str, high: int, low: int = 0) -> int:
        value = self.number(column, low, high)
        assert value is not None
        return value

    def fields(self, column: str, base: openb_own.Value) -> openb_own.Value:
        """Return `base` with the fields that the cell replaces."""
        try:
            return openb_own.merged(base, self.text(column))
        except ValueError as error:
            raise self.error(column, str(error)) from None

    def error(self, column: str, problem: str) -> BadInputError:
        return BadInputError(f"{self._path}, line {self._line}, column {column}", problem)


def read_nodes(path: Path) -> list[Node]:
    """Read a node list in file order; `BadInputError` names line and column."""
    nodes: list[Node] = []
    names: set[str] = set()

    def take(row: _Row) -> None:
        name = row.text("sn")
        if not name or name in names:
            raise row.error("sn", f"{name!r} is empty or a duplicate; names must be unique")
        names.add(name)
        model, gpus = row.text("model"), row.count("gpu", 1024)
        memory = row.number(GPU_MEMORY, 1, 10**9, optional=True)
        cpu_milli, memory_mib = row.count("cpu_milli", 10**9), row.count("memory_mib", 10**9)
        node = node_of(name, cpu_milli, memory_mib, gpus, model, memory)
        nodes.append(row.fields(openb_own.NODE, node))

    _read(path, NODE_COLUMNS, take)
    return nodes


def node_of(
    name: str, cpu_milli: int, memory_mib: int, gpus: int, model: str, gpu_memory_mib: int | None
) -> Node:
    """Return an openb row's node; GPUs of unknown memory get their model's nominal memory."""
    memory = gpu_memory_mib or NOMINAL_MIB.get(model, OTHER_MIB)
    cards = tuple(Gpu(index, memory, model) for index in range(gpus))
    return Node(name, cards, cpu_milli, memory_mib)


def read_pods(path: Path, card_mib: int = OTHER_MIB) -> list[TracePod]:
    """Read a pod list in file order; `BadInputError` names line and column.

    `card_mib` is the memory of the cluster's average GPU, to convert memory requests to shares."""
    pods: list[TracePod] = []
    shapes: dict[Shape, Shape] = {}

    def take(row: _Row) -> None:
        gpus, milli = row.count("num_gpu", 1024), row.count("gpu_milli", 1000)
        memory = _gpu_memory(row)
        if not (memory.value or row.text(openb_own.POD)):
            _check_plain(row, gpus, milli)
        cpu_milli, memory_mib = row.count("cpu_milli", 10**9), row.count("memory_mib", 10**9)
        shape = shape_of(cpu_milli, memory_mib, gpus, milli, row.text("gpu_spec"), memory)
        if application := row.text("application"):
            shape = msgspec.structs.replace(shape, application=application)
        shape = row.fields(openb_own.POD, shape)
        shape = shapes.setdefault(shape, shape)
        gpus, milli = openb_own.asked(shape, card_mib)
        created, deleted, scheduled = (
            row.number(column, 0, 10**12, optional=True) for column in TIME_COLUMNS
        )
        priority = row.number("priority", -(2**31), 2**31 - 1, optional=True) or 0
        pods.append(
            TracePod(row.text("name"), shape, gpus, milli, created, deleted, scheduled, priority)
        )

    _read(path, POD_COLUMNS, take)
    return pods


def _check_plain(row: _Row, gpus: int, milli: int) -> None:
    """Check openb's own rules for pods that ask for no GPU memory."""
    if gpus and not milli:
        raise row.error("gpu_milli", "0 on a pod with GPUs; write 1 to 1000")
    if gpus > 1 and milli < 1000:
        advice = "only whole GPUs can be several, so write 1000"
        raise row.error("gpu_milli", f"{milli} with num_gpu {gpus}; {advice}")


def _gpu_memory(row: _Row) -> GpuMemoryRequest:
    mib = row.number(GPU_MEMORY, 0, 10**9, optional=True) or 0
    percent = row.number(GPU_PERCENT, 0, 100, optional=True) or 0
    if mib and percent:
        raise row.error(
            GPU_PERCENT, f"{percent} in addition to {GPU_MEMORY} {mib}; write one of them"
        )
    if percent:
        return GpuMemoryRequest("percent", percent)
    return GpuMemoryRequest("mib", mib) if mib else GpuMemoryRequest()


def shape_of(
    cpu_milli: int,
    memory_mib: int,
    gpus: int,
    milli: int,
    spec: str = "",
    gpu_memory: GpuMemoryRequest = _NO_MEMORY,
) -> Shape:
    """Return an openb row's request: `gpus` whole GPUs, or one share of `milli`, of models in
    `spec`.

    With `gpu_memory` the request is for that memory and `milli` of the cores of each GPU."""
    gpu_requests: tuple[GpuRequest, ...] = ()
    if gpus and gpu_memory.value:
        gpu_requests = (GpuRequest(gpus, gpu_memory, milli),)
    elif gpus:
        whole = milli >= 1000
        gpu_requests = (GpuRequest(gpus, milli=0 if whole else milli, whole=whole),)
    models = tuple(sorted(filter(None, spec.split("|"))))
    rule = DeviceRule(models=models) if models and gpus else DeviceRule()
    return Shape(gpu_requests, cpu_milli, memory_mib, devices=rule, trace_spec=spec)


def _read(path: Path, columns: tuple[str, ...], take: Callable[[_Row], None]) -> None:
    reader = csv.reader(io.StringIO(read_text(path)))
    try:
        header = _header(path, next(reader, None), columns)
        for cells in reader:
            line = reader.line_num
            if not cells:
                continue
            if len(cells) != len(header):
                problem = f"{len(cells)} columns, the header has {len(header)}"
                raise BadInputError(f"{path}, line {line}", problem)
            take(_Row(path, line, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise BadInputError(f"{path}, line {reader.line_num}", f"not CSV: {error}") from None


def _header(path: Path, header: list[str] | None, columns: tuple[str, ...]) -> list[str]:
    if header is None:
        raise BadInputError(str(path), f"is empty; its first line must be {','.join(columns)},…")
    missing = [column for column in columns if column not in header]
    if missing:
        near = nearest(missing[0], set(header) - set(columns))
        hint = f"; is it the column {near!r}?" if near else ";"
        problem = f"column {missing[0]} is missing{hint} need {', '.join(columns)}"
        raise BadInputError(f"{path}, line 1", problem.replace("? need", "? Need"))
    _check_spelling(path, header, columns)
    return header


def _check_spelling(path: Path, header: list[str], columns: tuple[str, ...]) -> None:
    """Reject misspelt optional columns, which would have no effect; other unknown columns are
    ignored."""
    absent = set(_OPTIONAL[columns]) - set(header)
    for column in sorted(set(header) - set(columns) - set(_OPTIONAL[columns])):
        near = nearest(column, absent, like=_MISSPELT)
        if near and abs(len(near) - len(column)) <= _MOST_LONGER:
            problem = f"column {column!r} is unknown; did you mean {near!r}?"
            raise BadInputError(f"{path}, line 1", problem)
