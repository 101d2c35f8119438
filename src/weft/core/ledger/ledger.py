"""Exact accounts of GPUs, CPU and memory, and the only code that changes them.

Only holdings (each pod's placement, by UID) and the table's *used* columns change here. The ledger
knows no policy, no clock (times are passed in) and no API.

Invariants
  1. No GPU is reserved beyond its memory or cores, with the exceptions declared in `limits`: how
     far memory may be overcommitted, and how far a harvesting policy may lend memory that pods
     hold but were measured not to need (`set_idle`). Pods that others placed (`adopt`) are facts
     and are charged even if they overbook a GPU, which `audit` reports.
  2. Used columns equal the sum over holdings; free columns follow from used ones.
  3. The ledger is a pure function of (nodes, holdings): rebuilt from both, it equals itself.
     A holding whose node is unknown is not charged until the node appears.
  4. Each operation is idempotent by pod UID; `rollback` can undo any of them.

States of a holding
    reserve ──▶ RESERVED ──commit──▶ COMMITTED ──release──▶ gone
                   │  expire(now) / release ──────────────▶ gone
    adopt (seen bound on the API) ──▶ COMMITTED
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from weft.core.ledger.relayout import relaid
from weft.core.ledger.table import (
    FAR,
    STRICT,
    Bools,
    Holding,
    Ints,
    LedgerTable,
    RequestLimits,
    resident_on,
)
from weft.model import ClosedNode, Node, Placement, Share
from weft.model.request import have_conflicts

LAYOUTS = 16
"""Number of past layouts for which `rows_then` can still tell a node's row."""


class MemoryAmount(NamedTuple):
    """How a pod's request for memory of a shared GPU is checked.

    With `harvest` the pod may also get memory that other pods leave idle. `expected_mib` is the
    peak of similar pods, 0 if unknown: if known, only this much must be measured free, while the
    whole request must be within the declared limit."""

    harvest: bool = False
    expected_mib: int = 0


STRICTLY = MemoryAmount()


class Ledger:
    """Accounts of a cluster's nodes. The module's docstring states the invariants.

    `on_booked` is called with each holding that begins (1) or ends (−1), including those of
    trials."""

    def __init__(self, nodes: Iterable[Node] = (), limits: RequestLimits = STRICT) -> None:
        self.limits = limits
        self.holdings: dict[str, Holding] = {}
        self.held_back: dict[tuple[str, int], int] = {}
        self.version = self.tried = self._tried_from = 0
        self.generation = 0
        self.closed: set[str] = set()
        self.on_booked: Callable[[Holding, int], None] | None = None
        self._told_idle: dict[str, None] = {}  # includes all pods with idle memory
        self._on_node: dict[str, dict[str, Holding]] = {}
        self._reserved: set[str] = set()
        self._undo: list[tuple[str, Holding | None, tuple[str, ...]]] | None = None
        self._rows_before: dict[int, Ints] = {}
        self._followers: list[set[int]] = []
        self._lay_out(list(nodes))

    # --- nodes -----------------------------------------------------------------------------

    def set_nodes(self, changed: Iterable[Node], removed: Iterable[str] = ()) -> list[str]:
        """Add, replace and remove nodes in one step; return the names of nodes that changed.

        Holdings stay: those of a removed node are not charged until the node comes back."""
        if self._undo is not None:
            raise RuntimeError("nodes cannot change under a checkpoint")
        table = self.table
        nodes = {node.name: node for node in table.nodes}
        touched = [name for name in removed if nodes.pop(name, None) is not None]
        relayout = bool(touched)
        for node in changed:
            old = nodes.get(node.name)
            if old == node and node.name not in self.closed:
                continue
            touched.append(node.name)
            relayout = True
            nodes[node.name] = node
        if relayout:
            self._lay_out_anew(list(nodes.values()))
        return touched

    def rows_then(self, generation: int) -> Ints | None:
        """Return, for each present row, the row that its node had in the layout of this generation,
        −1 if the node was missing then or changed since; None if the layout is too old."""
        rows = self._rows_then.get(generation)
        if rows is None and (before := self._rows_before.get(generation)) is not None:
            later = self.rows_then(generation + 1)
            if later is not None:
                rows = later.copy()
                rows[later >= 0] = before[later[later >= 0]]
                self._rows_then[generation] = rows
        return rows

    def close(self, closed: Iterable[ClosedNode]) -> None:
        """Close nodes (taints, cordons) immediately, without a new layout. `set_nodes` handles all
        other changes, and counts a node closed here as changed."""
        if self._undo is not None:
            raise RuntimeError("nodes cannot change under a checkpoint")
        for node in closed:
            row = self.table.row_of.get(node.name)
            if row is not None:
                self.table.close(row, node)
                self.version += 1
                self.table.changed_at[row] = self.table.closed_at = self.version
                self.closed.add(node.name)

    def _lay_out(self, nodes: list[Node]) -> None:
        self.generation += 1
        self.version += 1
        self.closed.clear()
        self.table = LedgerTable(nodes, self.limits)
        self.table.changed_at[:] = self.version
        self._charge_held_back(self.held_back)
        self._rows_before.clear()
        self._rows_then = {self.generation: np.arange(self.table.count)}
        for row in range(self.table.count):
            self._charge_node(row)
        for changed in self._followers:
            changed.update(range(self.table.count))

    def _lay_out_anew(self, nodes: list[Node]) -> None:
        """Build a new table from the old one: only rows of nodes that came or changed are
        computed."""
        old, resources = self.table, set(self.table.extended)
        self.generation += 1
        self.version += 1
        self.closed.clear()
        self.table, rows = relaid(old, nodes, self.limits)
        self._rows_before[self.generation - 1] = rows
        self._rows_before.pop(self.generation - LAYOUTS, None)
        self._rows_then = {self.generation: np.arange(self.table.count)}
        table = self.table
        came = np.flatnonzero(rows < 0)
        names = {table.nodes[row].name for row in came.tolist()}
        self._charge_held_back({gpu: m for gpu, m in self.held_back.items() if gpu[0] in names})
        for row in came.tolist():
            self._charge_node(row)
        self._charge_new_resources(table.extended.keys() - resources, names)
        unmeasured = np.zeros(old.count + 1, dtype=np.bool_)  # the last one is row −1
        unmeasured[old.device_node[old.measured]] = True
        kept = np.flatnonzero(unmeasured[rows])
        for row in kept.tolist():
            table.refresh_row(row)
        table.changed_at[came] = table.changed_at[kept] = self.version
        for changed in self._followers:
            now_at = [row for row, then in enumerate(rows.tolist()) if then < 0 or then in changed]
            changed.clear()
            changed.update(now_at)

    def _charge_node(self, row: int) -> None:
        """Charge all holdings of a node whose columns have no charges yet."""
        pods = self._on_node.get(self.table.nodes[row].name)
        if pods:
            for holding in pods.values():
                self._charge(row, holding, 1)
            self.table.refresh_row(row)

    def _charge_new_resources(self, resources: Set[str], charged: Set[str]) -> None:
        """Charge, on nodes other than `charged`, extended resources that no node had before."""
        if not resources:
            return
        for holding in self.holdings.values():
            row = self.table.row_of.get(holding.placement.node)
            if row is not None and holding.placement.node not in charged:
                for name, amount in holding.placement.extended:
                    if name in resources:
                        self.table.use_extended(name, row, amount)

    # --- holdings --------------------------------------------------------------------------

    def reserve(
        self, placement: Placement, deadline_ns: int = FAR, asks: MemoryAmount = STRICTLY
    ) -> bool:
        """Reserve `placement` for its pod. Return False, and change nothing, if it does not fit.
        Reserving the same placement again returns True and changes nothing; a pod that holds
        another placement is refused. `asks` may allow memory that other pods leave idle."""
        holding = self.holdings.get(placement.uid)
        if holding is not None:
            return holding.placement == placement
        if not self.fits(placement, asks):
            return False
        self._put(Holding(placement, "reserved", deadline_ns, expected_mib=asks.expected_mib))
        return True

    def commit(self, uid: str) -> bool:
        """Turn the pod's reservation into a committed holding; False if the pod holds nothing."""
        holding = self.holdings.get(uid)
        if holding is None:
            return False
        if holding.state != "committed":
            self._log(uid, holding)
            sure = Holding(
                holding.placement, "committed", FAR, holding.idle_mib, holding.expected_mib
            )
            self.holdings[uid] = self._on_node[holding.placement.node][uid] = sure
            self._reserved.discard(uid)
        return True

    def adopt(self, placement: Placement) -> bool:
        """Charge a pod that the API shows bound, by Weft or another scheduler; return True if
        anything changed. The charge is never refused, because the pod runs. It replaces a different
        placement of the pod."""
        holding = self.holdings.get(placement.uid)
        if holding is not None:
            if holding.placement == placement:
                changed = holding.state != "committed"
                self.commit(placement.uid)
                return changed
            self.release(placement.uid)
        self._put(Holding(placement, "committed"))
        return True

    def release(self, uid: str) -> Holding | None:
        """Free the resources that the pod holds; return the holding, None if there was none."""
        holding = self.holdings.get(uid)
        if holding is not None:
            self._log(uid, holding)
            self._take_away(holding)
        return holding

    def forget(self, uid: str) -> None:
        """Remove a pod whose charge failed half-way, as if it had never held anything."""
        holding = self.holdings.pop(uid, None)
        if holding is not None:
            self._reserved.discard(uid)
            pods = self._on_node[holding.placement.node]
            del pods[uid]
            if not pods:
                del self._on_node[holding.placement.node]
            if self.on_booked is not None:
                self.on_booked(holding, -1)
            self._lay_out(self.table.nodes)

    def expire(self, now_ns: int) -> list[str]:
        """Free reservations whose deadline has passed; return their UIDs, earliest deadline
        first."""
        late = sorted(
            (self.holdings[uid].deadline_ns, uid)
            for uid in self._reserved
            if self.holdings[uid].deadline_ns <= now_ns
        )
        for _, uid in late:
            self.release(uid)
        return [uid for _, uid in late]

    def set_idle(self, idle_mib: Mapping[str, Sequence[int]]) -> list[Holding]:
        """Set the measured idle memory of each pod's shares, in MiB by UID. It replaces earlier
        values: pods that are left out have no idle memory, and neither have shares beyond the end
        of a list. Values are clipped to the share. Return the holdings that changed, in their state
        before."""
        if self._undo is not None:
            raise RuntimeError("measurements cannot change under a checkpoint")
        moved: list[tuple[Holding, tuple[int, ...]]] = []
        for uid, measured in idle_mib.items():
            holding = self.holdings.get(uid)
            if holding is not None and measured != holding.idle_mib:
                idle = _within(measured, holding.placement)
                if idle != holding.idle_mib:
                    moved.append((holding, idle))
        for uid in [uid for uid in self._told_idle if uid not in idle_mib]:
            holding = self.holdings.get(uid)
            if holding is not None and holding.idle_mib:
                moved.append((holding, ()))
        self._told_idle = dict.fromkeys(idle_mib)
        self._measure(moved)
        return [holding for holding, _ in moved]

    def set_measured(self, measured: Bools | None = None) -> None:
        """Set the mask of devices whose memory was measured just now, [D]; None for none. A change
        of nodes resets it."""
        table = self.table
        is_measured = (
            np.zeros(table.devices, dtype=np.bool_) if measured is None else measured.copy()
        )
        changed, table.measured = np.flatnonzero(table.measured != is_measured), is_measured
        for device in changed.tolist():
            if not table.pods[device]:
                continue  # nothing is lent there
            row = int(table.device_node[device])
            table.refresh_row(row, [device])
            self.version += 1
            table.changed_at[row] = self.version

    def hold_back(self, amounts: Mapping[tuple[str, int], int]) -> None:
        """Set how much memory of each GPU (node, index) is held back from lending, in MiB, on top
        of the reserve; this replaces earlier values."""
        if self._undo is not None:
            raise RuntimeError("measurements cannot change under a checkpoint")
        positive = {gpu: mib for gpu, mib in amounts.items() if mib > 0}
        before, self.held_back = self.held_back, positive
        moved = {
            gpu: positive.get(gpu, 0)
            for gpu in before.keys() | positive.keys()
            if before.get(gpu) != positive.get(gpu)
        }
        for row in self._charge_held_back(moved):
            self.version += 1
            self.table.changed_at[row] = self.version

    def _charge_held_back(self, amounts: Mapping[tuple[str, int], int]) -> set[int]:
        """Write the amounts into the columns; return the rows of the known nodes."""
        rows = set()
        for (name, gpu), mib in amounts.items():
            row = self.table.row_of.get(name)
            device = self.table.device_row(row, gpu) if row is not None else -1
            if row is not None and device >= 0:
                self.table.memory_held_back[device] = mib
                self.table.refresh_row(row, [device])
                rows.add(row)
        return rows

    def _measure(self, moved: Sequence[tuple[Holding, tuple[int, ...]]]) -> None:
        """Store the pods' idle memory, and recompute the columns of each node once."""
        devices: dict[int, set[int]] = {}
        for holding, idle_mib in moved:
            uid, name = holding.placement.uid, holding.placement.node
            new = replace(holding, idle_mib=idle_mib)
            self.holdings[uid] = self._on_node[name][uid] = new
            row = self.table.row_of.get(name)
            if row is not None:
                self._charge_idle(row, holding, -1)
                devices.setdefault(row, set()).update(self._charge_idle(row, new, 1))
        self.version += len(moved)
        for row, touched in devices.items():
            self.table.refresh_row(row, sorted(touched))
            self.table.changed_at[row] = self.version

    def touch(self, rows: Ints) -> None:
        """Mark the nodes in these rows as changed: their signals changed, and policies read
        signals."""
        if len(rows):
            self.version += 1
            self.table.changed_at[rows] = self.version

    def fits(self, placement: Placement, asks: MemoryAmount = STRICTLY) -> bool:
        """Return True if the placement fits on its node now; False if an amount is negative."""
        return fits(self.table, placement, asks)

    def occupants(self, node: str, gpu: int) -> list[str]:
        """Return the UIDs of the pods with a share of this GPU, in order of arrival."""
        pods = self._on_node.get(node, {})
        return [
            uid
            for uid, holding in pods.items()
            if any(share.gpu == gpu for share in holding.placement.shares)
        ]

    def pods_on(self, node: str) -> Iterator[Holding]:
        """Iterate over all holdings on this node."""
        return iter(list(self._on_node.get(node, {}).values()))

    def count_on(self, node: str) -> int:
        """Return the number of pods that hold something on this node."""
        return len(self._on_node.get(node, ()))

    def follow(self) -> set[int]:
        """Return a set to which the rows of changed nodes are added from now on, in terms of the
        present layout; the caller empties it."""
        changed: set[int] = set()
        self._followers.append(changed)
        return changed

    def forget_measurements(self) -> None:
        """Drop all measurements of memory use: nothing is lent, and all nodes are assessed
        again."""
        self.set_idle({})
        self.hold_back({})
        self.set_measured()
        self.touch(np.arange(self.table.count))

    # --- checkpoint and rollback -----------------------------------------------------------

    def checkpoint(self) -> None:
        """Begin a trial: `rollback` undoes all later changes. Only one checkpoint can be open."""
        if self._undo is not None:
            raise RuntimeError("a checkpoint is already open")
        self._undo, self._tried_from = [], self.version

    @property
    def on_trial(self) -> bool:
        """True if a checkpoint is open, so that changes may be undone."""
        return self._undo is not None

    def keep(self) -> None:
        """Close the checkpoint and keep the changes."""
        self._undo = None

    def rollback(self) -> None:
        """Undo all changes since the checkpoint, newest first, and add their number to `tried`."""
        log, self._undo = self._undo or [], None
        for uid, before, order in reversed(log):
            now = self.holdings.get(uid)
            if now is not None:
                self._take_away(now)
            if before is not None:
                self._put(before)
                pods = self._on_node[before.placement.node]
                self._on_node[before.placement.node] = {uid: pods[uid] for uid in order}
        self.tried += self.version - self._tried_from

    # --- the only code that charges ----------------------------------------------------------

    def _log(self, uid: str, before: Holding | None) -> None:
        """Log the pod's holding, and the order of the pods on its node, for `rollback`."""
        if self._undo is not None:
            order = () if before is None else tuple(self._on_node[before.placement.node])
            self._undo.append((uid, before, order))

    def _put(self, holding: Holding) -> None:
        uid, name = holding.placement.uid, holding.placement.node
        self._log(uid, None)
        self.holdings[uid] = holding
        if holding.state == "reserved":
            self._reserved.add(uid)
        self._on_node.setdefault(name, {})[uid] = holding
        self._book(name, holding, 1)

    def _take_away(self, holding: Holding) -> None:
        uid, name = holding.placement.uid, holding.placement.node
        del self.holdings[uid]
        self._reserved.discard(uid)
        pods = self._on_node[name]
        del pods[uid]
        if not pods:
            del self._on_node[name]
        self._book(name, holding, -1)

    def _book(self, name: str, holding: Holding, sign: int) -> None:
        self.version += 1
        if self.on_booked is not None:
            self.on_booked(holding, sign)
        row = self.table.row_of.get(name)
        if row is not None:
            devices = self._charge(row, holding, sign)
            if devices:
                self.table.refresh_row(row, devices)
            self.table.changed_at[row] = self.version
            for changed in self._followers:
                changed.add(row)

    def _charge(self, row: int, holding: Holding, sign: int) -> list[int]:
        """Add (`sign` 1) or remove (−1) a holding in the used columns; return its device rows."""
        table, placement = self.table, holding.placement
        table.cpu_free[row] -= sign * placement.cpu_milli
        table.memory_free[row] -= sign * placement.memory_mib
        for name, amount in placement.extended:
            if name in table.extended:
                table.use_extended(name, row, sign * amount)
        if placement.ports:
            self._charge_ports(row, placement, sign)
        devices: list[int] = []
        for share in placement.shares:
            device = table.device_row(row, share.gpu)
            if device < 0:
                continue
            table.memory_used[device] += sign * share.memory_mib
            table.milli_used[device] += sign * share.milli
            if device not in devices:
                devices.append(device)
                table.pods[device] += sign
                resident = resident_on(placement, table.gpu(row, device))
                table.residents.change(device, resident, sign)
        if holding.idle_mib:
            self._charge_idle(row, holding, sign)
        pod_class = holding.pod_class
        if pod_class >= 0:
            table.hosted[row, pod_class] += sign
        return devices

    def _charge_idle(self, row: int, holding: Holding, sign: int) -> list[int]:
        """Add (`sign` 1) or remove (−1) a holding's idle memory in the columns; return its device
        rows."""
        devices = []
        shares = holding.placement.shares
        for share, mib in itertools.zip_longest(shares, holding.idle_mib, fillvalue=0):
            assert isinstance(share, Share)
            assert isinstance(mib, int)
            device = self.table.device_row(row, share.gpu)
            if device >= 0:
                self.table.memory_idle[device] += sign * mib
                devices.append(device)
        return devices

    def _charge_ports(self, row: int, placement: Placement, sign: int) -> None:
        used_ports = self.table.ports.setdefault(row, [])
        for port in placement.ports:
            if sign > 0:
                used_ports.append(port)
            else:
                used_ports.remove(port)
        if not used_ports:
            del self.table.ports[row]


def _within(idle_mib: Sequence[int], placement: Placement) -> tuple[int, ...]:
    """Return the measured idle MiB of each share, at most the share; () if all are 0."""
    within = tuple(
        max(0, min(int(mib), share.memory_mib))
        for mib, share in zip(idle_mib, placement.shares, strict=False)
    )
    return within if any(within) else ()


def fits(table: LedgerTable, placement: Placement, asks: MemoryAmount = STRICTLY) -> bool:
    """Return True if the placement fits on its node now; False if an amount is negative."""
    row = table.row_of.get(placement.node)
    if row is None or not table.schedulable[row]:
        return False
    if not _has(table.cpu_free[row], placement.cpu_milli):
        return False
    if not _has(table.memory_free[row], placement.memory_mib):
        return False
    beside = not placement.extended or _extended_fits(table, row, placement)
    if not beside or (placement.ports and _ports_taken(table, row, placement)):
        return False
    if len(placement.shares) == 1:
        return _share_fits(table, row, placement.shares[0], asks)
    return _shares_fit(table, row, placement.shares)


def _has(free: int, amount: int) -> bool:
    """Return True if `amount` may be taken of `free`; 0 always may, even on an overbooked node."""
    return amount == 0 or 0 < amount <= free


def _ports_taken(table: LedgerTable, row: int, placement: Placement) -> bool:
    return have_conflicts(placement.ports, table.ports.get(row, ()))


def _extended_fits(table: LedgerTable, row: int, placement: Placement) -> bool:
    free: dict[str, int] = {}
    for name, amount in placement.extended:
        if name not in free:
            column = table.extended.get(name)
            free[name] = 0 if column is None else int(column[row])
        free[name] -= amount
        if amount < 0 or (amount and free[name] < 0):
            return False
    return True


def _share_fits(table: LedgerTable, row: int, share: Share, asks: MemoryAmount = STRICTLY) -> bool:
    device = table.device_row(row, share.gpu)
    return (
        device >= 0
        and bool(table.device_usable[device])
        and _memory_fits(table, device, share.memory_mib, asks)
        and bool(0 <= share.milli <= table.device_milli_free[device])
    )


def _memory_fits(table: LedgerTable, device: int, asked_mib: int, asks: MemoryAmount) -> bool:
    free = table.device_memory_harvest if asks.harvest else table.device_memory_free
    if 0 <= asked_mib <= free[device]:
        return True
    if not asks.harvest or not asks.expected_mib:
        return False
    return bool(
        0 <= asked_mib <= table.device_unpromised[device]
        and asks.expected_mib <= table.device_unneeded[device]
    )


def _shares_fit(table: LedgerTable, row: int, shares: tuple[Share, ...]) -> bool:
    """Check several shares: their sums must fit each GPU, and no GPU may be used together with its
    own MIG instances."""
    if any(share.memory_mib < 0 or share.milli < 0 for share in shares):
        return False
    together: dict[int, Share] = {}
    for share in shares:
        sofar = together.get(share.gpu)
        together[share.gpu] = (
            share
            if sofar is None
            else Share(
                gpu_request=share.gpu_request,
                gpu=share.gpu,
                memory_mib=sofar.memory_mib + share.memory_mib,
                milli=sofar.milli + share.milli,
            )
        )
    if not all(_share_fits(table, row, share) for share in together.values()):
        return False
    if table.has_parents:
        devices = {table.device_row(row, gpu) for gpu in together}
        return all(table.parents[device] not in devices for device in devices)
    return True
