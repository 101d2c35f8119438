"""The ledger beside a reference on dicts: random operations, compared after every single one."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace
from ways import drawn, examples

from fakes.reference import ReferenceAccount, ReferenceLedger
from weft.core.ledger import Ledger, RequestLimits, audit
from weft.core.ledger.audit import differences
from weft.model import ClosedNode, Node, Placement, Share
from weft.testing import node

LICENCE = "example.com/licence"
CARD = 1000
NAMES = ("a", "b", "c", "d", "e")

uids = st.sampled_from([f"pod-{i}" for i in range(8)])
names = st.sampled_from(NAMES)
amounts = st.sampled_from([0, 1, 100, 250, 400, 500, 600, 1000])
gpus = st.integers(0, 5)
times = st.integers(0, 20)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """A node of one to three cards, alike or not, perhaps cut by MIG, some out of service."""
    cards = draw(st.integers(0, 3))
    alike = draw(st.booleans())
    cut = draw(st.sampled_from([0, 0, 2])) if cards in (1, 2) else 0
    return node(
        draw(names),
        gpus=cards,
        model="T4" if alike else [f"model-{i % 2}" for i in range(cards)],
        memory_mib=CARD if alike else [CARD * (1 + i % 2) for i in range(cards)],
        mig=cut,
        broken=draw(st.sets(gpus, max_size=1)),
        cpu_milli=draw(st.sampled_from([1000, 4000])),
        host_memory_mib=2000,
        extended=draw(st.sampled_from([{}, {LICENCE: 2}])),
        rank=draw(st.integers(0, 2)),
        schedulable=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Any placement: sensible, too large, on absent GPUs or nodes, twice on one GPU, negative."""
    shares = [
        Share(gpu_request, draw(gpus), draw(amounts), draw(amounts))
        for gpu_request in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3])))
    ]
    if shares and draw(st.integers(0, 19)) == 0:
        shares[0] = Share(0, 0, -100, -100)
    asked = draw(st.sampled_from([(), (), ((LICENCE, 1),), ((LICENCE, 3),), (("other", 1),)]))
    return Placement(draw(uids), draw(names), tuple(shares), draw(amounts), draw(amounts), asked)


FACTS = (
    "overbooked",
    "holds a GPU that the node does not have",
    "is held together with its MIG instance",
)
"""Faults that `audit` may name about pods that others placed; any other is a fault of the
ledger."""


@drawn
class LedgerMachine(RuleBasedStateMachine):
    """Each rule does the same to both ledgers; the invariants compare all there is to see."""

    overcommit_permille = 1000

    @initialize(some=st.lists(nodes(), min_size=2, max_size=4, unique_by=lambda n: n.name))
    def start(self, some: list[Node]) -> None:
        self.live = Ledger(some, RequestLimits(self.overcommit_permille))
        self.slow = ReferenceLedger(some, self.overcommit_permille)
        self.adopted: set[str] = set()
        self.open: Counter[str] | None = None
        self.rebuilt_at = -1

    # --- what pods do ----------------------------------------------------------------------------

    @rule(placement=placements(), deadline_ns=times)
    def reserve(self, placement: Placement, deadline_ns: int) -> None:
        assert self.live.fits(placement) == self.slow.fits(placement)
        assert self.live.reserve(placement, deadline_ns) == self.slow.reserve(
            placement, deadline_ns
        )

    @rule(data=st.data(), deadline_ns=times)
    def reserve_what_fits(self, data: st.DataObject, deadline_ns: int) -> None:
        """Random placements are mostly refused: this one takes free room on a real GPU."""
        usable = [
            (name, index, entry)
            for name, account in self.slow.accounts().items()
            for index, entry in account.gpus.items()
            if entry.usable and account.node.schedulable
        ]
        if not usable:
            return
        name, index, entry = data.draw(st.sampled_from(usable))
        memory_mib = data.draw(st.integers(0, entry.memory_free))
        milli = data.draw(st.integers(0, entry.milli_free))
        wanted = Placement(data.draw(uids), name, (Share(0, index, memory_mib, milli),))
        free = wanted.uid not in self.live.holdings
        account = self.slow.account(name)
        room = account.cpu_free >= 0 and account.memory_free >= 0
        assert self.live.reserve(wanted, deadline_ns) == self.slow.reserve(wanted, deadline_ns)
        if free and room:
            assert wanted.uid in self.live.holdings

    @rule(uid=uids)
    def reserve_again(self, uid: str) -> None:
        held = self.live.holdings.get(uid)
        if held is not None:
            version = self.live.version
            assert self.live.reserve(held.placement)
            assert self.live.version == version

    @rule(uid=uids)
    def commit(self, uid: str) -> None:
        assert self.live.commit(uid) == self.slow.commit(uid)

    @rule(placement=placements().filter(lambda p: all(s.memory_mib >= 0 for s in p.shares)))
    def adopt(self, placement: Placement) -> None:
        assert self.live.adopt(placement) == self.slow.adopt(placement)
        self.adopted.add(placement.uid)

    @rule(uid=uids)
    def adopt_what_is_held(self, uid: str) -> None:
        held = self.live.holdings.get(uid)
        if held is not None:
            assert self.live.adopt(held.placement) == self.slow.adopt(held.placement)

    @rule(uid=uids)
    def release(self, uid: str) -> None:
        held = self.live.release(uid)
        assert (held is not None) == self.slow.release(uid)
        assert self.live.release(uid) is None

    @rule(now_ns=times)
    def expire(self, now_ns: int) -> None:
        assert sorted(self.live.expire(now_ns)) == sorted(self.slow.expire(now_ns))

    # --- what nodes do ---------------------------------------------------------------------------

    @precondition(lambda self: self.open is None)
    @rule(changed=st.lists(nodes(), max_size=2), removed=st.lists(names, max_size=1))
    def set_nodes(self, changed: list[Node], removed: list[str]) -> None:
        before = dict(self.slow.nodes)
        touched = self.live.set_nodes(changed, removed)
        self.slow.set_nodes(changed, removed)
        now = self.slow.nodes
        different = {name for name in NAMES if before.get(name) != now.get(name)}
        assert different <= set(touched)

    @precondition(lambda self: self.open is None)
    @rule(name=names)
    def close(self, name: str) -> None:
        """Until it is told anew, whatever it is then."""
        node = self.slow.nodes.get(name)
        if node is not None:
            self.slow.set_nodes([replace(node, schedulable=False)])
        self.live.close([ClosedNode(name, schedulable=False)])

    # --- try, then undo --------------------------------------------------------------------------

    @precondition(lambda self: self.open is None)
    @rule()
    def checkpoint(self) -> None:
        self.live.checkpoint()
        self.slow.checkpoint()
        self.open = Counter()

    @precondition(lambda self: self.open is not None)
    @rule()
    def rollback(self) -> None:
        self.live.rollback()
        self.slow.rollback()
        self.open = None

    @precondition(lambda self: self.open is not None)
    @rule()
    def keep(self) -> None:
        self.live.keep()
        self.slow.keep()
        self.open = None

    # --- what must hold --------------------------------------------------------------------------

    @invariant()
    def holdings_are_equal(self) -> None:
        live = {
            uid: (held.placement, held.state, held.deadline_ns)
            for uid, held in self.live.holdings.items()
        }
        assert live == {
            uid: (held.placement, held.state, held.deadline_ns)
            for uid, held in self.slow.held.items()
        }

    @invariant()
    def columns_are_the_reference_s(self) -> None:
        table = self.live.table
        wanted = sorted(self.slow.nodes.values(), key=lambda one: (one.rank, one.name))
        assert [one.name for one in table.nodes] == [one.name for one in wanted]
        for row, one in enumerate(wanted):
            self._compare(row, self.slow.account(one.name))

    def _compare(self, row: int, account: ReferenceAccount) -> None:
        table, name = self.live.table, account.node.name
        entries = list(account.gpus.values())
        usable = [entry for entry in entries if entry.usable]
        assert (table.cpu_free[row], table.memory_free[row]) == (
            account.cpu_free,
            account.memory_free,
        )
        for resource, amount in account.extended_free.items():
            assert table.extended[resource][row] == amount
        assert table.usable_gpus[row] == len(usable)
        assert table.idle[row] == sum(entry.idle for entry in entries)
        assert table.milli_free[row] == sum(entry.milli_free for entry in usable)
        assert table.max_milli_free[row] == max((e.milli_free for e in usable), default=-1)
        assert table.max_memory_free[row] == max((e.memory_free for e in usable), default=-1)
        first = table.start[row]
        for device, entry in enumerate(entries, first):
            assert table.device_memory_free[device] == entry.memory_free
            assert table.device_milli_free[device] == entry.milli_free
            assert bool(table.device_idle[device]) == entry.idle
            assert bool(table.device_usable[device]) == entry.usable
            assert (table.memory_used[device], table.milli_used[device]) == (
                entry.memory_used,
                entry.milli_used,
            )
            assert table.pods[device] == len(entry.pods)
            assert self.live.occupants(name, entry.gpu.index) == self.slow.occupants(
                name, entry.gpu.index
            )

    @invariant()
    def a_rebuilt_ledger_is_the_same(self) -> None:
        """After a crash there are only nodes and what the API shows bound, in any order.

        Looked at after each change; `audit` rebuilds it after every step, in order."""
        if self.live.version == self.rebuilt_at:
            return
        self.rebuilt_at = self.live.version
        fresh = Ledger(reversed(self.live.table.nodes), RequestLimits(self.overcommit_permille))
        for uid in sorted(self.live.holdings, reverse=True):
            fresh.adopt(self.live.holdings[uid].placement)
        assert differences(self.live.table, fresh.table) == []

    @invariant()
    def nothing_is_overbooked_but_by_facts(self) -> None:
        """Faults beyond overbooking are never excused, and overbooking only by an adopted pod or by
        a node that came back smaller."""
        self.judge(audit(self.live))

    def judge(self, sentences: list[str]) -> None:
        assert [s for s in sentences if not any(fact in s for fact in FACTS)] == []
        on_gpus = [s for s in sentences if " used of " in s]
        beside = [
            f"{name}: {what} overbooked by {-free}"
            for name, account in self.slow.accounts().items()
            for what, free in (
                ("cpu (m)", account.cpu_free),
                ("memory (MiB)", account.memory_free),
            )
            if free < 0
        ]
        assert sorted(s for s in sentences if ": cpu (m)" in s or ": memory (MiB)" in s) == sorted(
            beside
        )
        overbooked = [
            f"{name} GPU {index}: {what} {used} {unit} used of {limit}, "
            f"overbooked by {used - limit}"
            for name, account in self.slow.accounts().items()
            for index, entry in account.gpus.items()
            for what, unit, used, limit in (
                (
                    "memory",
                    "MiB",
                    entry.memory_used,
                    entry.gpu.memory_mib * self.overcommit_permille // 1000,
                ),
                ("cores", "m", entry.milli_used, entry.gpu.milli),
            )
            if used > limit
        ]
        assert sorted(on_gpus) == sorted(overbooked)


class WithoutFacts(LedgerMachine):
    """Nobody else places pods and nodes stay: then nothing is ever overbooked."""

    adopt = None  # type: ignore[assignment]
    set_nodes = close = None  # type: ignore[assignment]

    def judge(self, sentences: list[str]) -> None:
        """No GPU is beyond its capacity either."""
        super().judge(sentences)
        assert sentences == []
        table = self.live.table
        assert all(used <= 1000 for used in table.milli_used)
        limits = (table.device_memory_total * self.overcommit_permille // 1000).tolist()
        assert all(0 <= u <= m for u, m in zip(table.memory_used, limits, strict=True))


class Overcommitted(WithoutFacts):
    """Half again as much memory may be promised as there is, and not a MiB more."""

    overcommit_permille = 1500


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(10, 130), stateful_step_count=50)
TestWithoutFacts = WithoutFacts.TestCase
TestWithoutFacts.settings = settings(max_examples=examples(5, 25), stateful_step_count=50)
TestOvercommitted = Overcommitted.TestCase
TestOvercommitted.settings = settings(max_examples=examples(5, 25), stateful_step_count=50)
