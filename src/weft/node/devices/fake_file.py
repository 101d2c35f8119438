"""The form of the file that plays GPUs, and what is said of one that is wrong."""

import math
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from weft.files.reading import read_text
from weft.files.yaml_text import BrokenYamlError, load
from weft.model import BadInputError
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS, MOST_LETTERS
from weft.model.gpu_links import UNKNOWN_NUMA, GpuLinks, checked_links, nvlink_generation
from weft.model.metric import Metric
from weft.model.nearest import nearest, unknown

API_VERSION = "weft.dev/v1"
KIND = "FakeDevices"

Mib = Annotated[int, Meta(ge=0, le=MOST_GPU_MIB)]
Count = Annotated[int, Meta(ge=1, le=MOST_GPUS)]
Name = Annotated[str, Meta(max_length=MOST_LETTERS)]
Ratio = Annotated[float, Meta(ge=0, le=1)]

_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_METRICS = frozenset(metric.value for metric in Metric)


class FakeForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Base: snake_case here, camelCase in the file; a field nobody knows is an error."""


class FakePhase(FakeForm, frozen=True):
    """What a GPU does for so many seconds: values by canonical metric name."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)]
    values: dict[str, float]


class FakeMig(FakeForm, frozen=True):
    """MIG instances of one profile."""

    profile: Name
    memory_mib: Annotated[int, Meta(ge=1, le=MOST_GPU_MIB)] = msgspec.field(name="memoryMiB")
    count: Annotated[int, Meta(ge=1, le=14)] = 1


class FakeGpu(FakeForm, frozen=True):
    """One card, or `count` alike. `memory_mib` is all of it, `reserved_mib` the driver's part.

    `minor` is the first one's; the others count up. `paths` may say {index} and {minor}.
    """

    model: Name
    memory_mib: Annotated[int, Meta(ge=1, le=MOST_GPU_MIB)] = msgspec.field(name="memoryMiB")
    reserved_mib: Mib = msgspec.field(default=0, name="reservedMiB")
    count: Count = 1
    uuid: Name = ""
    minor: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    numa_node: Annotated[int, Meta(ge=0, le=2**20)] | None = None
    pci_bus_id: Name = ""
    paths: tuple[str, ...] = ()
    mig: tuple[FakeMig, ...] = ()
    xids: tuple[Annotated[int, Meta(ge=1, le=10_000)], ...] = ()
    fault: Name = ""
    unplugged: bool = False
    use: tuple[FakePhase, ...] = ()

    def nth(self, number: int) -> "FakeGpu":
        """The card of this number among those alike, from 0."""
        minor = None if self.minor is None else self.minor + number
        return msgspec.structs.replace(self, count=1, minor=minor)


class FakeProcess(FakeForm, frozen=True):
    """A process on a GPU (index or UUID): a pid, or whichever runs in a pod (UID) or cgroup."""

    gpu: int | str
    memory_mib: Mib = msgspec.field(name="memoryMiB")
    pid: Annotated[int, Meta(ge=1, le=2**22)] | None = None
    pod: Name = ""
    cgroup: str = ""
    sm_ratio: Ratio | None = None


class FakeFile(FakeForm, frozen=True):
    """The file."""

    api_version: str
    kind: str
    gpus: tuple[FakeGpu, ...] = ()
    processes: tuple[FakeProcess, ...] = ()
    driver_version: Name = "fake"
    shared_paths: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def gpu_links(self) -> GpuLinks | None:
        """The links of its cards; None where it says none."""
        if not self.links:
            return None
        cards = [card for card in self.gpus for _ in range(card.count)]
        numa = [UNKNOWN_NUMA if card.numa_node is None else card.numa_node for card in cards]
        generation = nvlink_generation(cards[0].model) if cards else 0
        links = GpuLinks(tuple(range(len(cards))), self.links, generation, tuple(numa))
        return checked_links(links, "links")


def read_fake(path: Path) -> FakeFile:
    """The file's GPUs; `BadInputError` names file, field and value where it is wrong."""
    where = str(path)
    text = read_text(path)
    try:
        document = load(text)
    except BrokenYamlError as error:
        line = "" if error.line is None else f", line {error.line + 1}"
        raise BadInputError(where + line, f"is no YAML: {error}") from None
    except BadInputError as error:
        raise BadInputError(_place(where, error.where), error.problem) from None
    if not isinstance(document, dict):
        raise BadInputError(where, f"is empty; write apiVersion: {API_VERSION}, kind: {KIND}, gpus")
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if document.get(field) != wanted:
            wrong = f"{document.get(field)!r} is unknown; write {wanted}"
            raise BadInputError(_place(where, field), wrong)
    try:
        file = msgspec.convert(document, FakeFile)
    except msgspec.ValidationError as error:
        match = _AT.fullmatch(str(error))
        what, at = (match[1], match[2] or "") if match else (str(error), "")
        raise BadInputError(_place(where, at), _in_words(what, at, document)) from None
    _check(file, where)
    return file


def _place(where: str, field: str) -> str:
    return f"{where}, {field}" if field else where


def _in_words(what: str, at: str, value: Any) -> str:
    """msgspec's complaint with the value, or the name that was meant."""
    kind: Any = msgspec.inspect.type_info(FakeFile)
    for name, index in _STEP.findall(at):
        if isinstance(kind, msgspec.inspect.StructType):
            kind = next((f.type for f in kind.fields if f.encode_name == name), None)
        else:
            kind = getattr(kind, "item_type", None)
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            break
    if (field := _FIELD.fullmatch(what)) and isinstance(kind, msgspec.inspect.StructType):
        known = [f.encode_name for f in kind.fields]
        near = nearest(field[1], known)
        return f"{what}; " + (f"did you mean {near!r}?" if near else f"it has {', '.join(known)}")
    return what if isinstance(value, dict | list) else f"{value!r}: {what}"


def _check(file: FakeFile, where: str) -> None:
    if sum(card.count * (1 + sum(m.count for m in card.mig)) for card in file.gpus) > MOST_GPUS:
        raise BadInputError(_place(where, "gpus"), f"no node has more than {MOST_GPUS} GPUs")
    uuids = [card.uuid for card in file.gpus if card.uuid]
    for at, card in enumerate(file.gpus):
        _check_card(card, _place(where, f"gpus[{at}]"), uuids)
    try:
        _ = file.gpu_links
    except BadInputError as error:
        raise BadInputError(_place(where, error.where), error.problem) from None
    for at, process in enumerate(file.processes):
        named = [process.pid is not None, bool(process.pod), bool(process.cgroup)]
        if named.count(True) != 1:
            wrong = "names one of pid, pod (its UID) and cgroup"
            raise BadInputError(_place(where, f"processes[{at}]"), wrong)


def _check_card(card: FakeGpu, where: str, uuids: list[str]) -> None:
    if card.reserved_mib >= card.memory_mib:
        wrong = f"{card.reserved_mib} is all that the card has ({card.memory_mib}); write less"
        raise BadInputError(f"{where}.reservedMiB", wrong)
    if card.uuid and (card.count > 1 or uuids.count(card.uuid) > 1):
        raise BadInputError(f"{where}.uuid", f"{card.uuid!r} is more than one card's; name it once")
    if (mig_mib := sum(m.count * m.memory_mib for m in card.mig)) > card.memory_mib:
        wrong = f"{mig_mib} MiB in all are more than the card has ({card.memory_mib})"
        raise BadInputError(f"{where}.mig", wrong)
    for at, path in enumerate(card.paths):
        try:
            path.format(index=0, minor=0)
        except (KeyError, IndexError, ValueError):
            wrong = f"{path!r} has braces for something else than {{index}} and {{minor}}"
            raise BadInputError(f"{where}.paths[{at}]", wrong) from None
    for at, phase in enumerate(card.use):
        for name, value in phase.values.items():
            field = f"{where}.use[{at}].values.{name}"
            if name not in _METRICS:
                raise BadInputError(field, unknown(name, sorted(_METRICS)))
            if not (math.isfinite(value) and value >= 0):
                raise BadInputError(field, f"{value} is no measurement; write 0 or more")
