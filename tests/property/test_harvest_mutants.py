"""The random world of lending would notice: each of these mistakes, put into Weft, is caught."""

from collections.abc import Callable

import pytest
from test_harvest_world import walk
from ways import FIRST

from weft.core.engine.harvest import HarvestRules
from weft.core.engine.peak_usage import Peaks
from weft.core.framework.demand import Demand
from weft.core.ledger import Ledger
from weft.core.ledger.table import LedgerTable
from weft.telemetry.feed import memory_needs

Mutant = Callable[[pytest.MonkeyPatch], None]


def newly_bound_pods_lend_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_needs, "_warm", lambda residents, *_: residents.age_s >= 0.0)


def two_harvests_between_two_looks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HarvestRules, "close", lambda self: None)


def the_lender_goes_first(patch: pytest.MonkeyPatch) -> None:
    in_order = HarvestRules.in_order
    patch.setattr(HarvestRules, "in_order", lambda self, node, gpu: in_order(self, node, gpu)[::-1])


def all_borrowers_at_once(patch: pytest.MonkeyPatch) -> None:
    observe = HarvestRules.observe

    def forgetful(self: HarvestRules, *told):  # type: ignore[no-untyped-def]
        self._leaving.clear()
        return observe(self, *told)

    patch.setattr(HarvestRules, "observe", forgetful)


def nobody_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HarvestRules, "_evictions_on", lambda *_: None)


def the_reserve_is_lent_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        LedgerTable, "lendable", lambda self, device: int(self.device_memory_total[device])
    )


def latency_critical_pods_borrow(patch: pytest.MonkeyPatch) -> None:
    def one_share(self: Demand) -> bool:
        return self.gpus == 1 and not self.needs[0].whole and self.needs[0].asks_memory

    patch.setattr(Demand, "_takes_one_share", one_share)


def idle_memory_is_measured_twice(patch: pytest.MonkeyPatch) -> None:
    once = Ledger.set_idle

    def more(self: Ledger, idle_mib):  # type: ignore[no-untyped-def]
        once(self, {uid: [2 * one for one in mib] for uid, mib in idle_mib.items()})

    patch.setattr(Ledger, "set_idle", more)


def the_declared_limit_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    derive = LedgerTable._derive_device

    def without(self: LedgerTable, device: int) -> None:
        self._harvest_limit = [1 << 40] * self.devices
        derive(self, device)

    patch.setattr(LedgerTable, "_derive_device", without)


def harvests_are_not_on_the_record(patch: pytest.MonkeyPatch) -> None:
    placed = HarvestRules.placed
    patch.setattr(HarvestRules, "placed", lambda *args: placed(*args)[:0])


def failed_pods_borrow_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("weft.core.engine.oom_history.OomHistory.shape_of", lambda self, pod: pod.shape)


def what_is_asked_is_forgotten_where_a_peak_is_known(patch: pytest.MonkeyPatch) -> None:
    derive = LedgerTable._derive_device

    def without(self: LedgerTable, device: int) -> None:
        derive(self, device)
        self.device_unpromised[device] = 1 << 40

    patch.setattr(LedgerTable, "_derive_device", without)


def learnt_peaks_are_gone_by_where_nothing_is_measured(patch: pytest.MonkeyPatch) -> None:
    def all_measured(self: Ledger, measured=None):  # type: ignore[no-untyped-def]
        self.table.measured[:] = True

    patch.setattr(Ledger, "set_measured", all_measured)


def a_newcomer_is_held_at_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_needs, "_expected", lambda residents, *_: 0.0 * residents.asked_mib)


def half_of_a_peak_is_learnt(patch: pytest.MonkeyPatch) -> None:
    ran = Peaks.ran
    patch.setattr(Peaks, "ran", lambda self, pod, most_mib: ran(self, pod, most_mib // 2))


MUTANTS = {
    newly_bound_pods_lend_at_once: 0,
    two_harvests_between_two_looks: 2,
    the_lender_goes_first: 0,
    all_borrowers_at_once: 0,
    nobody_goes: 0,
    the_reserve_is_lent_too: 1,
    latency_critical_pods_borrow: 1,
    idle_memory_is_measured_twice: 0,
    the_declared_limit_is_forgotten: 7,
    harvests_are_not_on_the_record: 0,
    failed_pods_borrow_again: 1,
    what_is_asked_is_forgotten_where_a_peak_is_known: 7,
    learnt_peaks_are_gone_by_where_nothing_is_measured: 0,
    a_newcomer_is_held_at_nothing: 0,
    half_of_a_peak_is_learnt: 8,
}
"""Each mistake, and the walk to begin with: one that showed it, so that little time is lost."""

WALKS = 60


def walk_on(first: int) -> None:
    for at in range(first, first + WALKS):
        seed = FIRST + at % WALKS
        walk(seed, honest=seed % 3 != 0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_random_world_catches(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        walk_on(MUTANTS[mutant])
