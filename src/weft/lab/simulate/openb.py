"""Reads clusters and workloads in the openb format (Alibaba cluster-trace-gpu-v2023).

openb has GPU shares in thousandths of a GPU and no GPU memory, so each model gets its nominal
memory from `NOMINAL_MIB`; pods request no memory, and policies that rank by memory rank by cores.
Further columns, which `weft trace` writes, hold what openb's columns cannot express."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from weft.dialects.queues import is_queue_name
from weft.files.reading import read_text
from weft.model import (
    BadInputError,
    DeviceRule,
    Gang,
    Gpu,
    GpuMemoryRequest,
    GpuRequest,
    Node,
    PodRequest,
    Shape,
)
from weft.model.nearest import nearest
from weft.model.number_text import whole_number

# --- Weft's own columns of openb files, for what openb's columns cannot express -------------------
#
# A cell of `weft_node` or `weft_pod` is a JSON object of fields that replace those of the other
# columns.

NODE, POD = "weft_node", "weft_pod"
Value = TypeVar("Value", Node, Shape)


def merged(base: Value, cell: str) -> Value:
    """Return `base` with the JSON fields of `cell` set; `ValueError` describes an invalid cell."""
    if not cell:
        return base
    try:
        fields = msgspec.json.decode(cell, type=dict[str, msgspec.Raw])
        unknown = sorted(set(fields) - set(base.__struct_encode_fields__))
        if unknown:
            known = ", ".join(base.__struct_encode_fields__)
            raise ValueError(f"has a field {unknown[0]!r}, which is not one of {known}")
        whole = msgspec.json.decode(msgspec.json.encode(base), type=dict[str, msgspec.Raw])
        return msgspec.json.decode(msgspec.json.encode(whole | fields), type=type(base))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"is not the JSON that weft trace writes: {error}") from None


def beyond(base: Value, value: Value) -> str:
    """Return the JSON of the fields in which `value` differs from `base`; "" if they are equal."""
    fields = {
        encoded: getattr(value, name)
        for name, encoded in zip(base.__struct_fields__, base.__struct_encode_fields__, strict=True)
        if getattr(value, name) != getattr(base, name)
    }
    return msgspec.json.encode(fields).decode() if fields else ""


def claims(shape: Shape) -> str:
    """Return the JSON cell of column `weft_pod` with all of a pod's GPU requests."""
    return msgspec.json.encode({"claims": shape.gpu_requests}).decode()


def usual_card_mib(nodes: Iterable[Node]) -> int:
    """Return the mean memory of the cluster's GPUs in MiB; 1 if there are none."""
    cards = [gpu.memory_mib for node in nodes for gpu in node.gpus]
    return sum(cards) // max(1, len(cards)) or 1


def asked(shape: Shape, card_mib: int) -> tuple[int, int]:
    """Return the number of GPUs requested, and the average thousandths of each.

    A share counts as its cores, or as its part of a GPU of `card_mib` MiB if that is larger."""
    gpus, total = shape.gpus, 0
    for request in shape.gpu_requests:
        part = request.memory.on_node(0).mib_on(card_mib) * 1000 // max(1, card_mib)
        if request.whole:
            total += 1000 * request.count
        elif request.split:
            total += max(request.milli * request.count, part)
        else:
            total += min(1000, max(request.milli, part)) * request.count
    return gpus, -(-total // gpus) if gpus else 0


# --- the files ------------------------------------------------------------------------------------

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
"""MiB per model: as vendors specify public models, and a common size for models masked in the
trace."""
OTHER_MIB = 16_384

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
GPU_MEMORY, GPU_PERCENT = "gpu_memory_mib", "gpu_memory_percent"
GANG, GANG_MIN, QUEUE, RESTART_S = "gang", "gang_min", "queue", "restart_s"
NAMESPACE = "default"
"""The namespace of all pods of a list, and so the queue of pods that name no queue."""
LISTED = "trace"
"""The value of `Gang.system` for gangs that are named in a pod list."""
TIME_COLUMNS = ("creation_time", "deletion_time", "scheduled_time")
_OPTIONAL: dict[tuple[str, ...], tuple[str, ...]] = {
    NODE_COLUMNS: (GPU_MEMORY, NODE),
    POD_COLUMNS: (
        *("gpu_spec", "application", "priority", GPU_MEMORY, GPU_PERCENT, POD, GANG, GANG_MIN),
        *(QUEUE, RESTART_S, *TIME_COLUMNS),
    ),
}
_MISSPELT, _MOST_LONGER = 0.85, 2
"""A name at least this similar to a known column, and at most this much longer or shorter, counts
as misspelt."""


_NO_MEMORY = GpuMemoryRequest()


class TracePod(msgspec.Struct, frozen=True, gc=False):
    """One row of a pod list. Times are seconds from the trace's start, None if absent.

    `milli` is the request per GPU: cores, or the share of a GPU's memory if that is larger. Pods of
    a recorded day have the whole `request`. A `withdrawn` pod never ran in the recording: it is
    deleted at `deleted_s` (`later`), or at once if it is not placed at once (`at-once`).
    `listed_gang` and `listed_queue` are named in the row. A pod with `restart_s` may be moved for
    other pods, and then repeats that many seconds of its work."""

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
    listed_gang: Gang | None = None
    listed_queue: str = ""
    restart_s: int | None = None

    @property
    def names_queue(self) -> bool:
        """True if the pod's row, or its recorded request, names a team's queue."""
        return bool(self.listed_queue or (self.request is not None and self.request.queue))

    @property
    def queue(self) -> str:
        """The team's queue that the scheduler assigns the pod to: by default, its namespace's."""
        return self.listed_queue or (NAMESPACE if self.request is None else self.request.team_queue)

    @property
    def gang(self) -> Gang | None:
        """The pod's gang, from its row or its recorded request; None if it belongs to none."""
        if self.request is None or self.request.gang is UNSET:
            return self.listed_gang
        return self.request.gang

    @property
    def total_milli(self) -> int:
        """The thousandths of GPUs that the pod requests in total."""
        return self.gpus * self.milli


class _Row:
    """One CSV row, and its position for error messages."""

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

    def fields(self, column: str, base: Value) -> Value:
        """Return `base` with the JSON fields of the cell in this column set."""
        try:
            return merged(base, self.text(column))
        except ValueError as error:
            raise self.error(column, str(error)) from None

    def queue(self) -> str:
        """Return the queue that the row names; "" if none."""
        name = self.text(QUEUE)
        if name and not is_queue_name(name):
            raise self.error(QUEUE, f"{name!r} is not a name; write letters, digits, _ . / and -")
        return name

    def error(self, column: str, problem: str) -> BadInputError:
        return BadInputError(f"{self._path}, line {self._line}, column {column}", problem)


def read_nodes(path: Path) -> list[Node]:
    """Read a node list in file order; `BadInputError` names the line and column of a fault."""
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
        nodes.append(row.fields(NODE, node))

    _read(path, NODE_COLUMNS, take)
    return nodes


def node_of(
    name: str, cpu_milli: int, memory_mib: int, gpus: int, model: str, gpu_memory_mib: int | None
) -> Node:
    """Return the node of an openb row; without `gpu_memory_mib` GPUs get their model's nominal
    memory."""
    memory = gpu_memory_mib or NOMINAL_MIB.get(model, OTHER_MIB)
    cards = tuple(Gpu(index, memory, model) for index in range(gpus))
    return Node(name, cards, cpu_milli, memory_mib)


def read_pods(path: Path, card_mib: int = OTHER_MIB) -> list[TracePod]:
    """Read a pod list in file order; `BadInputError` names the line and column of a fault.

    `card_mib` is the average memory of the cluster's GPUs, to convert memory requests to shares."""
    pods: list[TracePod] = []
    shapes: dict[Shape, Shape] = {}
    gangs = _ListedGangs()

    def take(row: _Row) -> None:
        gpus, milli = row.count("num_gpu", 1024), row.count("gpu_milli", 1000)
        memory = _gpu_memory(row)
        if not (memory.value or row.text(POD)):
            _check_plain(row, gpus, milli)
        cpu_milli, memory_mib = row.count("cpu_milli", 10**9), row.count("memory_mib", 10**9)
        shape = shape_of(cpu_milli, memory_mib, gpus, milli, row.text("gpu_spec"), memory)
        if application := row.text("application"):
            shape = msgspec.structs.replace(shape, application=application)
        shape = row.fields(POD, shape)
        shape = shapes.setdefault(shape, shape)
        gpus, milli = asked(shape, card_mib)
        created, deleted, scheduled = (
            row.number(column, 0, 10**12, optional=True) for column in TIME_COLUMNS
        )
        priority = row.number("priority", -(2**31), 2**31 - 1, optional=True) or 0
        times = created, deleted, scheduled
        restart_s = row.number(RESTART_S, 0, 10**9, optional=True)
        pod = TracePod(
            *(row.text("name"), shape, gpus, milli, *times, priority),
            listed_queue=row.queue(),
            restart_s=restart_s,
        )
        pods.append(pod)
        gangs.take(row, len(pods) - 1)

    _read(path, POD_COLUMNS, take)
    for gang, rows in gangs.found():
        for at in rows:
            pods[at] = replace(pods[at], listed_gang=gang)
    return pods


class _ListedGangs:
    """Gangs by name: the rows of their pods, and the minimum number of pods if a row has it."""

    def __init__(self) -> None:
        self._rows: dict[str, list[int]] = {}
        self._least: dict[str, tuple[int, _Row]] = {}

    def take(self, row: _Row, number: int) -> None:
        name, least = row.text(GANG), row.number(GANG_MIN, 1, 10**6, optional=True)
        if not name:
            if least is not None:
                raise row.error(GANG_MIN, f"{least} on a pod without {GANG}; name its gang")
            return
        self._rows.setdefault(name, []).append(number)
        if least is None:
            return
        before, _ = self._least.setdefault(name, (least, row))
        if before != least:
            problem = f"{least} for gang {name!r}, but {before} in another row"
            raise row.error(GANG_MIN, f"{problem}; write the same number in all rows of a gang")

    def found(self) -> Iterator[tuple[Gang, list[int]]]:
        """Yield each gang with the rows of its pods."""
        for name, rows in self._rows.items():
            least, row = self._least.get(name, (len(rows), None))
            if row is not None and least > len(rows):
                problem = f"{least} of gang {name!r}, which has {len(rows)} rows"
                raise row.error(GANG_MIN, f"{problem}; it would wait for ever")
            yield Gang(LISTED, NAMESPACE, name, least), rows


def _check_plain(row: _Row, gpus: int, milli: int) -> None:
    """Check openb's own rules for pods without a GPU memory request."""
    if gpus and not milli:
        raise row.error("gpu_milli", "0 on a pod with GPUs; write 1 to 1000")
    if gpus > 1 and milli < 1000:
        advice = "a pod with several GPUs gets whole ones, so write 1000"
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
    """Return the request of an openb row: `gpus` whole GPUs, or one share of `milli`, of models in
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
    """Reject misspelt optional columns, which would have no effect; ignore other unknown
    columns."""
    absent = set(_OPTIONAL[columns]) - set(header)
    for column in sorted(set(header) - set(columns) - set(_OPTIONAL[columns])):
        near = nearest(column, absent, like=_MISSPELT)
        if near and abs(len(near) - len(column)) <= _MOST_LONGER:
            problem = f"column {column!r} is unknown; did you mean {near!r}?"
            raise BadInputError(f"{path}, line 1", problem)


def duration_ns(pod: TracePod) -> int | None:
    """Return the ns that the pod runs once placed; None if the trace has no times for it."""
    if pod.deleted_s is None or pod.scheduled_s is None:
        return None
    return round((pod.deleted_s - pod.scheduled_s) * 1_000_000_000)


def check_times(pods: list[TracePod], source: str) -> None:
    """Check that every pod has the creation time that timed mode needs, and does not end before it
    starts.

    openb's short lists have no times."""
    for row, pod in enumerate(pods):
        place = f"{source}, line {row + 2}, column"
        if pod.created_s is None:
            problem = (
                "is missing: timed mode needs creation_time (and deletion_time, scheduled_time "
                "for pods that end); leave --timed out for lists without times"
            )
            raise BadInputError(f"{place} creation_time", problem)
        if (duration_ns(pod) or 0) < 0:
            problem = f"{pod.deleted_s} is before scheduled_time {pod.scheduled_s}"
            raise BadInputError(f"{place} deletion_time", problem)


# --- Writes nodes and pods in the form that `openb.py` reads: openb's columns and Weft's own ------

Cell = str | int | float | None


def nodes_csv(nodes: Iterable[Node]) -> str:
    """Return a node list as CSV."""
    return _csv((*NODE_COLUMNS, GPU_MEMORY, NODE), map(_node_row, nodes))


def pods_csv(pods: Iterable[TracePod]) -> str:
    """Return a pod list as CSV, with times in whole seconds.

    Columns of gangs, queues and restart costs are written only if a pod has a value."""
    pods = list(pods)
    own = (GPU_MEMORY, GPU_PERCENT, "priority", "application", POD)
    columns = [*POD_COLUMNS, "gpu_spec", *TIME_COLUMNS, *own]
    rows = [*map(_pod_row, pods)]
    if any(pod.gang for pod in pods):
        sizes = Counter(pod.gang.key for pod in pods if pod.gang)
        rows = [[*row, *_gang_cells(pod, sizes)] for row, pod in zip(rows, pods, strict=True)]
        columns += [GANG, GANG_MIN]
    if any(pod.names_queue for pod in pods):
        rows = [[*row, pod.queue] for row, pod in zip(rows, pods, strict=True)]
        columns += [QUEUE]
    if any(pod.restart_s is not None for pod in pods):
        rows = [[*row, pod.restart_s] for row, pod in zip(rows, pods, strict=True)]
        columns += [RESTART_S]
    return _csv(columns, rows)


def _gang_cells(pod: TracePod, sizes: Counter[str]) -> tuple[Cell, Cell]:
    """Return a gang's name, and its minimum number of pods (None if it needs all of them);
    (None, None) for a pod without a gang."""
    gang = pod.gang
    if gang is None:
        return None, None
    name = gang.name if gang.system == LISTED else gang.key
    return name, gang.least if 0 < gang.least < sizes[gang.key] else None


def _node_row(node: Node) -> list[Cell]:
    first = node.gpus[0] if node.gpus else None
    model, memory = (first.model.strip(), first.memory_mib) if first else ("", None)
    said = node_of(node.name, node.cpu_milli, node.memory_mib, len(node.gpus), model, memory)
    cells = node.name, node.cpu_milli, node.memory_mib, len(node.gpus), model, memory
    return [*cells, beyond(said, node)]


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
    cell = beyond(said, _comparable(shape, said))
    if not cell and gpus and not memory.value and (not milli or (gpus > 1 and milli < 1000)):
        cell = claims(shape)  # openb cannot express such pods
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
    """Return the shape with `said`'s `trace_spec` (the trace's text of required models), which
    only matters in FGD's histogram."""
    return replace(shape, trace_spec=said.trace_spec)


def _csv(columns: Iterable[str], rows: Iterable[list[Cell]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
