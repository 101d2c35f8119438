"""Partly placed pods: the states of a node's devices after the first steps, one row per state, for
many nodes at once.

Two states of a node are equivalent if their devices can be exchanged: the same free memory and
cores, the same use by the pod, and the same answers to every remaining step. Only one of them is
kept. States are compared by 64-bit sums of mixed device states: within the number of states that a
decision considers, two different ones collide less than once in 10^9 decisions."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from weft.core.ledger.table import Bools, Ints

Hashes = npt.NDArray[np.uint64]
Number = TypeVar("Number", bound=np.generic)

SINGLE, SEVERAL = 1, 2
"""Flags of a device: used for a GPU request for one GPU, or for part of a request for several
GPUs."""


class DeviceRequest(NamedTuple):
    """A GPU request as it applies to each device. `several`: the request is for more than one GPU;
    `whole`: its GPUs must be idle; `milli` is in thousandths of a GPU's cores. The arrays are
    [nodes, devices], or [devices] if all nodes are equal: memory that must be free (`ask_mib`),
    memory charged (`charge_mib`), and a mask of acceptable devices."""

    several: bool
    whole: bool
    milli: int
    ask_mib: Ints
    charge_mib: Ints
    allowed: Bools


Asks = Mapping[int, DeviceRequest]
"""GPU requests by number."""


class Nodes(NamedTuple):
    """Devices of some nodes before the pod is placed, [nodes, devices]; cells that are not `there`
    pad rows.

    Free memory (MiB) and cores (thousandths), idleness, the device's memory, `family`: the position
    of the GPU that a MIG instance belongs to (of itself for a GPU), and a mask of MIG instances.
    `spreadable` devices are acceptable to the pod's `split` GPU request."""

    memory: Ints
    milli: Ints
    idle: Bools
    total: Ints
    family: Ints
    instance: Bools
    spreadable: Bools
    there: Bools


class PartialStates:
    """Partly placed pods, one per row. `node` is the row in `nodes`, `flags` how the pod uses a
    device, `mine` the devices already taken for the GPU request being placed, `path` the devices
    chosen so far, [rows, steps]. `keys` and `sums` identify devices and states."""

    __slots__ = ("flags", "keys", "memory", "milli", "mine", "node", "path", "sums")

    def __init__(
        self,
        node: Ints,
        memory: Ints,
        milli: Ints,
        flags: npt.NDArray[np.uint8],
        mine: Bools,
        path: npt.NDArray[np.int16],
    ) -> None:
        self.node, self.memory, self.milli = node, memory, milli
        self.flags, self.mine, self.path = flags, mine, path
        self.keys: Hashes = np.zeros(0, dtype=np.uint64)
        self.sums: Hashes = np.zeros(0, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self.node)

    def bare(self, rows: Ints) -> "PartialStates":
        """Return only these rows, without keys and sums."""
        return PartialStates(
            self.node[rows],
            by_row(self.memory, rows),
            by_row(self.milli, rows),
            by_row(self.flags, rows),
            by_row(self.mine, rows),
            self.path[rows],
        )

    def take(self, rows: Ints) -> "PartialStates":
        """Return only these rows."""
        part = self.bare(rows)
        if len(self.sums):
            part.keys, part.sums = by_row(self.keys, rows), self.sums[rows]
        return part


class StateSpace:
    """All partial placements of a pod on some nodes: the initial states, and the states after each
    step.

    `steps` are the numbers of the GPU requests, once per requested GPU, in placement order."""

    def __init__(self, nodes: Nodes, asks: Asks, steps: Sequence[int]) -> None:
        self.nodes, self.asks, self.steps = nodes, asks, steps
        self.has_families = bool(nodes.instance.any())
        self._kinds = _kinds(nodes, asks, steps)
        self._exchangeable = True
        self._exchangeable = self._may_be_exchanged()

    def start(self) -> PartialStates:
        """Return the initial state of each node, with nothing placed."""
        rows, width = self.nodes.memory.shape
        states = PartialStates(
            np.arange(rows),
            self.nodes.memory,
            self.nodes.milli,
            np.zeros((width, rows), dtype=np.uint8).T,
            np.zeros((width, rows), dtype=np.bool_).T,
            np.zeros((rows, len(self.steps)), dtype=np.int16),
        )
        self._tell_apart(states, 0)
        return states

    def fits(self, states: PartialStates, index: int) -> Bools:
        """Return a mask of the devices that step number `index` could take, [rows, devices]."""
        step, node = self.asks[self.steps[index]], states.node
        fits = by_row(step.allowed, node)
        if step.several:
            fits &= ~states.mine
        if step.whole:
            fits &= by_row(self.nodes.idle, node) & (states.flags == 0)
        else:
            fits &= (states.milli >= step.milli) & (states.memory >= by_row(step.ask_mib, node))
        if self.has_families:
            fits &= ~self.blocked(states)
        return fits

    def blocked(self, states: PartialStates) -> Bools:
        """Return a mask of devices that the pod blocks by MIG: a GPU and its instances are never
        both held."""
        used, node = states.flags != 0, states.node
        family, instance = self.nodes.family[node], self.nodes.instance[node]
        rows, width = used.shape
        inside = np.zeros(rows * width, dtype=np.bool_)
        cells = np.arange(rows)[:, None] * width + family
        inside[cells[used & instance]] = True
        card = used.ravel()[cells]
        return np.where(instance, card, inside.reshape(rows, width))

    def distinct(self, states: PartialStates, row: Ints, device: Ints) -> tuple[Ints, Ints]:
        """Keep, in order, only the first of equivalent devices of each state among these choices
        (pairs of `row` and `device`)."""
        if not self._exchangeable:
            return row, device
        rows = row.astype(np.uint64) * _ODD[5]
        first = _first(mix(states.keys[row, device] + rows))
        return row[first], device[first]

    def follow(self, states: PartialStates, index: int, row: Ints, device: Ints) -> PartialStates:
        """Return the states after these choices for step `index`; of equal states only the
        first."""
        outcomes = states.bare(row)
        self.put(outcomes, index, device)
        if not self._exchangeable:
            return outcomes
        self._tell_apart(outcomes, index + 1)
        first = _first(mix(outcomes.sums + outcomes.node.astype(np.uint64) * _ODD[5]))
        return outcomes if len(first) == len(outcomes) else outcomes.take(first)

    def put(self, states: PartialStates, index: int, device: Ints) -> None:
        """Let step `index` take this device of each state, in place; `keys` and `sums` are not
        updated."""
        step, cells = self.asks[self.steps[index]], np.arange(len(states))
        states.memory[cells, device] -= step.charge_mib[states.node, device]
        states.milli[cells, device] -= step.milli
        states.flags[cells, device] |= SEVERAL if step.several else SINGLE
        states.path[:, index] = device
        last = index + 1 == len(self.steps)
        if not last and step.several and self.steps[index + 1] == self.steps[index]:
            states.mine[cells, device] = True
        elif step.several:
            states.mine[:] = False

    def _may_be_exchanged(self) -> bool:
        """Return True if some devices of a node, or some steps, are alike. Otherwise hardly any two
        states are equal, and finding equal ones would cost more than keeping them."""
        used = [self.asks[gpu_request] for gpu_request in self.steps]
        forms = {(ask.whole, ask.milli, ask.ask_mib.tobytes()) for ask in used}
        if any(ask.several for ask in used) or len(forms) < len(used):
            return True
        keys = self.start().keys
        in_order = np.sort(np.where(self.nodes.there, keys, 0), axis=1)
        return bool(((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] != 0)).any())

    def _tell_apart(self, states: PartialStates, index: int) -> None:
        node = states.node
        hashes = states.memory.view(np.uint64) * _ODD[0] + states.milli.view(np.uint64) * _ODD[1]
        hashes += (states.flags + np.uint8(4) * states.mine).astype(np.uint64) * _ODD[2]
        hashes = mix(hashes + by_row(self._kinds[index], node))
        if not self.has_families:
            states.keys, states.sums = hashes, hashes.sum(axis=1, dtype=np.uint64)
            return
        rows, width = hashes.shape
        family = self.nodes.family[node]
        together = np.zeros(rows * width, dtype=np.uint64)
        cells = np.arange(rows)[:, None] * width + family
        np.add.at(together, cells.ravel(), hashes.ravel())
        together = mix(together)
        states.keys = hashes * _ODD[3] + together[cells]
        states.sums = together.reshape(rows, width).sum(axis=1, dtype=np.uint64)


def _kinds(nodes: Nodes, asks: Asks, steps: Sequence[int]) -> list[Hashes]:
    """Return, for each step number, the part of each device's key that steps do not change: what
    that step and the later ones check of the device."""
    fixed = nodes.total.view(np.uint64) * _ODD[0] + nodes.instance * _ODD[1]
    fixed = fixed + nodes.spreadable * _ODD[2] + nodes.idle * _ODD[3] + nodes.there * _ODD[4]
    hashes, hashed = [mix(fixed)], set()
    for gpu_request in reversed(steps):
        device_hash = hashes[-1]
        if gpu_request not in hashed:
            hashed.add(gpu_request)
            ask = asks[gpu_request]
            device_hash = (
                device_hash + ask.ask_mib.view(np.uint64) * _ODD[0] + ask.allowed * _ODD[2]
            )
            device_hash = mix(device_hash + ask.charge_mib.view(np.uint64) * _ODD[1])
        hashes.append(device_hash)
    return hashes[::-1]


def by_row(values: npt.NDArray[Number], rows: Ints) -> npt.NDArray[Number]:
    """Return rows of an array, in column-major order: sums and extremes over few devices of many
    states are several times faster in that order."""
    return values.T.take(rows, axis=1).T


def _first(key: Hashes) -> Ints:
    """Return the position at which each key first occurs, in order."""
    order = key.argsort(kind="stable")
    ordered = key[order]
    new = np.ones(len(key), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    first = order[new]
    first.sort()
    return first


_ODD = np.array(
    [
        0x9E3779B97F4A7C15,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0xD6E8FEB86659FD93,
        0xA0761D6478BD642F,
        0xE7037ED1A0B428DB,
    ],
    dtype=np.uint64,
)


def mix(value: Hashes) -> Hashes:
    """Spread every input bit over all 64 bits (the finalizer of SplitMix64)."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
