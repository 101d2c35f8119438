"""The form of the file that simulates GPUs, and its checks."""

import math
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.files.form import Section, place, read_document, read_form
from weft.files.reading import read_text
from weft.model import BadInputError
from weft.model.ceilings import MOST_GPU_MIB, MOST_GPUS, MOST_LETTERS
from weft.model.gpu_links import UNKNOWN_NUMA, GpuLinks, checked_links, nvlink_generation
from weft.model.metric import Metric
from weft.model.nearest import unknown

API_VERSION = "weft.dev/v1"
KIND = "FakeDevices"

Mib = Annotated[int, Meta(ge=0, le=MOST_GPU_MIB)]
Count = Annotated[int, Meta(ge=1, le=MOST_GPUS)]
Name = Annotated[str, Meta(max_length=MOST_LETTERS)]
Ratio = Annotated[float, Meta(ge=0, le=1)]

_METRICS = frozenset(metric.value for metric in Metric)


class FakePhase(Section, frozen=True):
    """The load of a GPU for some seconds: values by canonical metric name."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)]
    values: dict[str, float]


class FakeMig(Section, frozen=True):
    """MIG instances of one profile."""

    profile: Name
    memory_mib: Annotated[int, Meta(ge=1, le=MOST_GPU_MIB)] = msgspec.field(name="memoryMiB")
    count: Annotated[int, Meta(ge=1, le=14)] = 1


class FakeGpu(Section, frozen=True):
    """One card, or `count` alike. `memory_mib` is the total, `reserved_mib` the driver's part of
    it.

    `minor` is the first card's; the others count up. `paths` may contain {index} and {minor}.
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
        """Return one of the `count` cards, numbered from 0."""
        minor = None if self.minor is None else self.minor + number
        return msgspec.structs.replace(self, count=1, minor=minor)


class FakeProcess(Section, frozen=True):
    """A process on a GPU (index or UUID): given by pid, or any that runs in a pod (UID) or
    cgroup."""

    gpu: int | str
    memory_mib: Mib = msgspec.field(name="memoryMiB")
    pid: Annotated[int, Meta(ge=1, le=2**22)] | None = None
    pod: Name = ""
    cgroup: str = ""
    sm_ratio: Ratio | None = None


class FakeFile(Section, frozen=True):
    """The whole file."""

    api_version: str
    kind: str
    gpus: tuple[FakeGpu, ...] = ()
    processes: tuple[FakeProcess, ...] = ()
    driver_version: Name = "fake"
    shared_paths: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    @property
    def gpu_links(self) -> GpuLinks | None:
        """The links of its cards; None if it has none."""
        if not self.links:
            return None
        cards = [card for card in self.gpus for _ in range(card.count)]
        numa = [UNKNOWN_NUMA if card.numa_node is None else card.numa_node for card in cards]
        generation = nvlink_generation(cards[0].model) if cards else 0
        links = GpuLinks(tuple(range(len(cards))), self.links, generation, tuple(numa))
        return checked_links(links, "links")


def read_fake(path: Path) -> FakeFile:
    """Read the file; `BadInputError` names file, field and value if it is wrong."""
    where = str(path)
    empty = f"is empty; write apiVersion: {API_VERSION}, kind: {KIND}, gpus"
    document = read_document(read_text(path), where, API_VERSION, KIND, empty=empty)
    try:
        file = read_form(document, FakeFile)
        _check(file)
    except BadInputError as error:
        raise BadInputError(place(where, error.where), error.problem) from None
    return file


def _check(file: FakeFile) -> None:
    if sum(card.count * (1 + sum(m.count for m in card.mig)) for card in file.gpus) > MOST_GPUS:
        raise BadInputError("gpus", f"no node has more than {MOST_GPUS} GPUs")
    uuids = [card.uuid for card in file.gpus if card.uuid]
    for at, card in enumerate(file.gpus):
        _check_card(card, f"gpus[{at}]", uuids)
    _ = file.gpu_links  # raises if the links are inconsistent
    for at, process in enumerate(file.processes):
        named = [process.pid is not None, bool(process.pod), bool(process.cgroup)]
        if named.count(True) != 1:
            wrong = "names one of pid, pod (its UID) and cgroup"
            raise BadInputError(f"processes[{at}]", wrong)


def _check_card(card: FakeGpu, where: str, uuids: list[str]) -> None:
    if card.reserved_mib >= card.memory_mib:
        wrong = f"{card.reserved_mib} is the card's whole memory ({card.memory_mib}); write less"
        raise BadInputError(f"{where}.reservedMiB", wrong)
    if card.uuid and (card.count > 1 or uuids.count(card.uuid) > 1):
        raise BadInputError(
            f"{where}.uuid", f"{card.uuid!r} is used for several cards; use it once"
        )
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
                raise BadInputError(field, f"{value} is not a valid measurement; write 0 or more")
