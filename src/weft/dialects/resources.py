"""Reads what containers ask for exactly: quantities, their places, and the pod's peak of them.

Kubernetes' rules, for every dialect alike. Extended resources are whole numbers whose request
equals their limit; a pod needs the larger of its init containers (each beside the sidecars started
before it) and of everything that runs together afterwards.
"""

import re
from collections.abc import Mapping, Sequence, Set
from typing import Literal, NamedTuple

from weft.dialects.bounds import REFUSED, InputBounds
from weft.model import ManifestContainer, PodManifest, parse_cpu_milli, parse_quantity
from weft.model.ceilings import MOST_AMOUNT
from weft.model.errors import BadInputError

Role = Literal["init", "sidecar", "main"]

# No card holds a million MiB: a number this large is a size in bytes (`10G`) given to a resource
# that counts units. Kubernetes takes it literally, and the pod then waits for ever.
MORE_THAN_A_CARD = 1_000_000


class ContainerSlot(NamedTuple):
    """A container in its place: `where` names it in errors, `role` says when it runs."""

    container: ManifestContainer
    role: Role
    where: str


def slots(pod: PodManifest) -> list[ContainerSlot]:
    """All containers in the order they start: init containers and sidecars, then the others."""
    places: list[ContainerSlot] = []
    for i, container in enumerate(pod.spec.init_containers or ()):
        role: Role = "sidecar" if container.restart_policy == "Always" else "init"
        places.append(ContainerSlot(container, role, f"spec.initContainers[{i}]"))
    for i, container in enumerate(pod.spec.containers):
        places.append(ContainerSlot(container, "main", f"spec.containers[{i}]"))
    return places


def asks_for(pod: PodManifest, names: Sequence[str]) -> bool:
    """True if any container names one of these resources with anything but zero."""
    resource_names = frozenset(names)
    named_by_none = resource_names.isdisjoint
    for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        limits, requests = container.resources.limits, container.resources.requests
        may = (limits and not named_by_none(limits)) or (requests and not named_by_none(requests))
        if may and names_any(container, resource_names):
            return True
    return False


def names_any(container: ManifestContainer, names: Set[str]) -> bool:
    """True if the container names one of these resources with anything but zero."""
    for amounts in (container.resources.limits, container.resources.requests):
        if amounts and not names.isdisjoint(amounts):
            return any(name in names and str(amounts[name]).strip() != "0" for name in amounts)
    return False


def asked_of(slot: ContainerSlot, names: Sequence[str]) -> list[str]:
    """Those of these resources that the container names with anything but zero."""
    resources = slot.container.resources
    amounts = [each for each in (resources.limits, resources.requests) if each]
    return [
        name
        for name in names
        if any(name in each and str(each[name]).strip() != "0" for each in amounts)
    ]


def by_name(places: Sequence[ContainerSlot]) -> dict[str, list[ContainerSlot]]:
    """The containers that ask for each resource, in their order. The others ask for none of it.

    A pod may have thousands of containers, and each a resource that nobody else names.
    """
    asking: dict[str, list[ContainerSlot]] = {}
    for slot in places:
        limits, requests = slot.container.resources.limits, slot.container.resources.requests
        for name in {**limits, **requests} if limits and requests else limits or requests or ():
            asking.setdefault(name, []).append(slot)
    return asking


def amount(slot: ContainerSlot, name: str, bounds: InputBounds = REFUSED) -> int:
    """The whole number that this container asks of an extended resource; 0 where it does not.

    The API server refuses pods whose request and limit differ, so that is an error here too.
    """
    limits, requests = slot.container.resources.limits, slot.container.resources.requests
    values: list[int] = []
    for field, amounts in (("limits", limits), ("requests", requests)):
        if amounts and name in amounts:
            where = f"{slot.where}.resources.{field}[{name}]"
            values.append(_whole(amounts[name], where, bounds))
    if len(values) == 2 and values[0] != values[1]:
        raise BadInputError(
            f"{slot.where}.resources.requests[{name}]",
            f"{values[1]} differs from the limit {values[0]}; Kubernetes wants them equal for this "
            "resource: leave the request out",
        )
    return values[0] if values else 0


def units(slot: ContainerSlot, name: str, unit: str) -> int:
    """`amount` of a resource that counts `unit`s of GPU memory, refusing sizes in bytes."""
    value = amount(slot, name)
    if value >= MORE_THAN_A_CARD:
        resources = slot.container.resources
        text = str({**(resources.requests or {}), **(resources.limits or {})}[name]).strip()
        # The API server shortens round numbers: nobody need have written the suffix.
        shortened = f" (so Kubernetes shows {value}, too)" if text[-1:] in "kMGTPE" else ""
        raise BadInputError(
            f"{slot.where}.resources.limits[{name}]",
            f"{text!r}{shortened} is {value:,} {unit}, more than any card has: a plain number "
            f"counts {unit}, not bytes; write how many {unit} of a card you want",
        )
    return value


def percent(slot: ContainerSlot, name: str) -> int:
    """`amount` of a resource that is a percentage of one card, refusing more than 100."""
    value = amount(slot, name)
    if value > 100:
        raise BadInputError(
            f"{slot.where}.resources.limits[{name}]",
            f"{value} is more than 100 percent of a card; write 1 to 100",
        )
    return value


def label_number(labels: Mapping[str, str], name: str, most: int, unit: str) -> int | None:
    """A whole number of 0 or more written in a label; None where it is missing or is none.

    One that is larger than `most` is refused: `what` has so much.
    """
    text = labels.get(name, "").strip()
    if not re.fullmatch(r"[0-9]{1,63}", text, re.ASCII):
        return None
    if int(text) > most:
        raise BadInputError(
            f"metadata.labels[{name}]", f"{text} is more than {unit} has; write {most:,} at most"
        )
    return int(text)


def peak(amounts: Sequence[tuple[Role, int]]) -> int:
    """The most that runs at any moment of the pod's life, in the order of `slots`."""
    running = highest = mains = 0
    for role, value in amounts:
        if role == "main":
            mains += value
        elif role == "sidecar":
            running += value
        else:
            highest = max(highest, running + value)
    return max(highest, running + mains)


def _whole(text: str | int | float, where: str, bounds: InputBounds) -> int:
    value = bounds.read(parse_quantity, text, where, MOST_AMOUNT)
    if value < MOST_AMOUNT and parse_cpu_milli(text, where) != value * 1000:
        raise BadInputError(where, f"{text!r} is not a whole number; write {value}")
    return value
