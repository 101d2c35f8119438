"""Observations go over predictions, for as long as they should."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.engine import Bind, Engine, PodAdded, PodBound, PolicyInput
from weft.core.framework import Profile
from weft.core.policies.interference import InterferencePolicy
from weft.interference import observed_slowdown
from weft.interference.observed_slowdown import (
    BAN_NS,
    KEEP_NS,
    MOST_NAMES,
    TELL_NS,
    Ban,
    ObservationRecord,
    ObservedSlowdowns,
    decode,
    encode,
)
from weft.model.interference_table import (
    INTERFERENCE,
    InterferenceTable,
    InterferenceView,
    PredictionTier,
    interference,
    to_input,
)
from weft.testing import node, pod

S = 1_000_000_000
NAMES = ("a", "b", "c", "d")


def base(
    tier: PredictionTier = PredictionTier.LEARNED, names: tuple[str, ...] = NAMES
) -> InterferenceTable:
    size = len(names) + 1
    mean = np.full((2, size, size), 0.1)
    tiers = np.full(mean.shape, tier, dtype=np.int8)
    tiers[:, -1, :] = tiers[:, :, -1] = -PredictionTier.UNKNOWN
    return interference(7, ["V100", "A100"], names, (mean, mean + 0.1, tiers), ["made"])


def cell(told: InterferenceTable | None, target: str, other: str, model: str = "V100") -> tuple:
    """Mean, bound and tier of a pair."""
    assert told is not None
    view = InterferenceView(told)
    at = (view.index_of(target), view.index_of(other))
    card = view.of(model)
    return round(float(card.mean[at]), 3), round(float(card.upper[at]), 3), int(card.tier[at])


def saw(
    seen: ObservedSlowdowns, slowdown: float, times: int = 3, **more: object
) -> ObservedSlowdowns:
    told = {"gpu_model": "V100", "target": "a", "others": ["b"], **more}
    for _ in range(times):
        seen.saw(slowdown=slowdown, **told)  # type: ignore[arg-type]
    return seen


def test_three_observations_make_a_pair_measured() -> None:
    seen = saw(ObservedSlowdowns(base()), 2.0, times=2)
    assert seen.due(S) is None
    saw(seen, 2.0, times=1)
    told = seen.due(S)
    assert cell(told, "a", "b") == (0.693, 0.713, PredictionTier.MEASURED)
    assert told is not None
    assert (told.version, told.sources) == (8, ("made", "observed"))


def test_other_gpu_models_and_the_other_one_of_the_pair_are_as_they_were() -> None:
    told = saw(ObservedSlowdowns(base(PredictionTier.TABLE)), 2.0).due(S)
    assert cell(told, "a", "b", "A100") == cell(told, "b", "a") == (0.1, 0.2, PredictionTier.TABLE)


def test_it_is_a_moving_mean_with_the_spread_of_what_was_seen() -> None:
    seen = ObservedSlowdowns(base())
    for value in (0.1, 0.2, 0.4):
        saw(seen, math.exp(value), times=1)
    mean = 0.1
    for value in (0.2, 0.4):
        mean += 0.3 * (value - mean)
    assert cell(seen.due(S), "a", "b")[0] == round(mean, 3)
    assert cell(ObservedSlowdowns(base(), seen.kept(S)).due(S), "a", "b")[1] == round(
        mean + 1.2816 * 1.4826 * 0.1, 3
    )


@pytest.mark.parametrize(
    "tier", [PredictionTier.LEARNED, PredictionTier.ADDITIVE, PredictionTier.HINGE]
)
def test_the_same_applications_elsewhere_are_corrected(tier: PredictionTier) -> None:
    told = saw(ObservedSlowdowns(base(tier)), math.exp(0.7)).due(S)
    # The ridge gives each of the two a third of the 0.6 that were missed.
    assert cell(told, "a", "c") == (0.3, 0.4, tier)
    assert cell(told, "c", "b") == (0.3, 0.4, tier)
    assert cell(told, "c", "d") == cell(told, "b", "a") == (0.1, 0.2, tier)


@pytest.mark.parametrize(
    "tier", [PredictionTier.TABLE, PredictionTier.MEASURED, PredictionTier.UNKNOWN]
)
def test_what_was_told_or_measured_is_not_corrected(tier: PredictionTier) -> None:
    told = saw(ObservedSlowdowns(base(tier)), 2.0).due(S)
    assert cell(told, "a", "c") == (0.1, 0.2, tier)


def test_several_at_once_correct_and_measure_no_pair() -> None:
    told = saw(ObservedSlowdowns(base()), math.exp(0.6), others=["c", "b"]).due(S)
    mean, _, tier = cell(told, "a", "b")
    assert (mean > 0.1, tier) == (True, PredictionTier.LEARNED)


def test_what_is_forbidden_stays_forbidden() -> None:
    view = InterferenceView(base())
    upper = view.upper.copy()
    upper[0, 0, 1] = np.inf
    start = interference(7, ["V100", "A100"], NAMES, (view.mean, upper, view.tier))
    assert cell(saw(ObservedSlowdowns(start), 1.0).due(S), "a", "b")[1] == math.inf


def test_applications_and_models_that_nobody_knew_get_a_place() -> None:
    told = saw(ObservedSlowdowns(base()), 2.0, target="new", gpu_model="H100").due(S)
    assert cell(told, "new", "b", "H100") == (0.693, 0.713, PredictionTier.MEASURED)
    assert cell(told, "b", "new", "H100")[2] == -PredictionTier.UNKNOWN
    assert cell(told, "a", "b", "H100")[2] == -PredictionTier.LEARNED  # nobody measured this model
    assert cell(told, "a", "b") == (0.1, 0.2, PredictionTier.LEARNED)


def test_it_begins_with_nothing() -> None:
    told = saw(ObservedSlowdowns(InterferenceTable(0)), 2.0).due(S)
    assert cell(told, "a", "b") == (0.693, 0.713, PredictionTier.MEASURED)
    assert cell(told, "b", "a")[2] == -PredictionTier.UNKNOWN


@pytest.mark.parametrize("number", [math.nan, math.inf, 0.0, -1.0])
def test_what_is_no_slowdown_teaches_nothing(number: float) -> None:
    assert saw(ObservedSlowdowns(base()), number, times=5).due(S) is None


def test_who_is_alone_teaches_nothing() -> None:
    assert saw(ObservedSlowdowns(base()), 2.0, others=[]).due(S) is None


def test_nothing_is_told_twice_nor_too_often() -> None:
    seen = saw(ObservedSlowdowns(base()), 2.0)
    assert seen.due(S) is not None
    assert seen.due(S + TELL_NS) is None
    saw(seen, 1.2)
    assert seen.due(S + TELL_NS - 1) is None
    told = seen.due(S + TELL_NS)
    assert told is not None
    assert told.version == 9


def test_other_predictions_are_patched_too() -> None:
    seen = saw(ObservedSlowdowns(base()), 2.0)
    assert seen.due(S) is not None
    seen.rebase(msgspec.structs.replace(base(), version=40))
    told = seen.due(S + 1)
    assert told is not None
    assert (told.version, cell(told, "a", "b")[2]) == (41, PredictionTier.MEASURED)


# --- bans ---


def test_a_ban_is_told_at_once_both_ways_and_ends() -> None:
    seen = saw(ObservedSlowdowns(base()), 1.1)
    seen.due(S)
    seen.ban("V100", "b", "a", 2 * S)
    told = seen.due(2 * S)
    assert cell(told, "a", "b")[1] == cell(told, "b", "a")[1] == math.inf
    assert cell(told, "a", "b", "A100")[1] == 0.2
    assert seen.due(2 * S + BAN_NS - 1) is None
    assert cell(seen.due(2 * S + BAN_NS), "a", "b") == (0.095, 0.115, PredictionTier.MEASURED)
    assert seen.bans(2 * S + BAN_NS) == ()


def placed(engine: Engine, name: str, now_ns: int) -> str:
    """Where a pod goes that runs the application of its first letter."""
    commands = engine.handle(
        PodAdded(pod(name, memory_mib=4_000, application=name[0], job_class="best-effort")), now_ns
    )
    found = [c for c in commands if isinstance(c, Bind) and c.pod.uid == name]
    for one in found:
        engine.handle(PodBound(one.pod.uid), now_ns)
    return found[0].placement.node if found else ""


def test_a_banned_pair_is_not_placed_together_for_30_minutes_and_is_afterwards() -> None:
    engine = Engine(
        [Profile("weft", [InterferencePolicy(patience=0.0)])], [node("n", gpus=1, model="V100")]
    )
    seen = ObservedSlowdowns(base())

    def tell(now_ns: int) -> None:
        told = seen.due(now_ns)
        if told is not None:
            engine.handle(PolicyInput(INTERFERENCE, to_input(told)), now_ns)

    engine.handle(PolicyInput(INTERFERENCE, to_input(base())), 0)
    assert placed(engine, "a-1", 0) == "n"
    seen.ban("V100", "a", "b", S)
    tell(S)
    for now_ns in (2 * S, S + BAN_NS - 1):
        tell(now_ns)
        assert placed(engine, f"b-{now_ns}", now_ns) == ""
    tell(S + BAN_NS)  # whoever waits is woken by it
    assert len(engine.ledger.occupants("n", 0)) == 2


def test_a_clock_that_went_back_makes_no_ban_longer() -> None:
    seen = ObservedSlowdowns(base())
    seen.ban("V100", "a", "b", 90 * 60 * S)
    assert seen.bans(S) == (Ban("V100", "a", "b", S + BAN_NS),)


@pytest.mark.parametrize("pair", [("", ""), ("", "a"), ("a", "")])
def test_pods_without_an_application_are_not_kept_apart_by_name(pair: tuple[str, str]) -> None:
    """A ban by the name of no application would be of all such pods."""
    seen = ObservedSlowdowns(base())
    seen.ban("V100", *pair, S)
    assert (seen.bans(S), seen.due(S)) == ((), None)
    written = ObservedSlowdowns(base(), ObservationRecord(bans=(Ban("V100", *pair, S + BAN_NS),)))
    assert (written.bans(S), written.due(S)) == ((), None)


# --- what it may not do ---


def test_a_bound_that_was_told_is_never_lowered() -> None:
    tier = PredictionTier.TABLE
    assert cell(saw(ObservedSlowdowns(base(tier)), 0.5).due(S), "a", "b") == (0.1, 0.2, tier)
    assert cell(saw(ObservedSlowdowns(base(tier)), 2.0).due(S), "a", "b") == (
        0.693,
        0.713,
        PredictionTier.MEASURED,
    )


@pytest.mark.parametrize("tier", [PredictionTier.MEASURED, PredictionTier.LEARNED])
def test_one_that_was_measured_or_predicted_is_lowered(tier: PredictionTier) -> None:
    assert cell(saw(ObservedSlowdowns(base(tier)), 1.0).due(S), "a", "b") == (
        0.0,
        0.02,
        PredictionTier.MEASURED,
    )


def test_a_spread_alone_raises_the_bound() -> None:
    seen = ObservedSlowdowns(base(PredictionTier.TABLE))
    for value in (-0.2, 0.0, 0.2):
        saw(seen, math.exp(value), times=1)
    mean, upper, tier = cell(seen.due(S), "a", "b")
    assert (mean, upper > 0.2, tier) == (0.1, True, PredictionTier.MEASURED)


def test_absurd_pairs_do_not_spread() -> None:
    seen = ObservedSlowdowns(base())
    for target in ("a", "c", "d", "e"):
        saw(seen, 100.0, target=target)
    mean, _, tier = cell(seen.due(S), "b", "b")
    assert (0.1 < mean <= 0.1 + math.log(2), tier) == (True, PredictionTier.LEARNED)


def test_made_up_names_do_not_make_the_table_large() -> None:
    seen = ObservedSlowdowns(base())
    for number in range(500):
        saw(seen, 2.0, target=f"run-{number}", others=[f"beside-{number}"])
        if number == 250:
            saw(seen, 2.0)
    seen.ban("V100", "kept", "apart", S)
    told = seen.due(S)
    assert told is not None
    assert len(told.classes) == len(NAMES) + MOST_NAMES
    assert cell(told, "kept", "apart")[1] == math.inf
    assert cell(told, "run-499", "beside-499")[2] == PredictionTier.MEASURED
    assert "run-0" not in told.classes
    assert cell(told, "a", "b")[2] == PredictionTier.MEASURED  # it needs no room
    assert seen.due(S + TELL_NS) is None


def test_bans_without_room_are_the_oldest() -> None:
    seen = ObservedSlowdowns(base())
    for number in range(MOST_NAMES):
        seen.ban("V100", f"one-{number}", f"other-{number}", S)
    saw(seen, 2.0, target="new")
    told = seen.due(S)
    assert told is not None
    assert len(told.classes) == len(NAMES) + MOST_NAMES
    last = MOST_NAMES - 1
    assert cell(told, f"one-{last}", f"other-{last}")[1] == math.inf
    assert not {"one-0", "new"} & set(told.classes)


def test_what_was_not_seen_for_a_week_is_forgotten() -> None:
    seen = saw(ObservedSlowdowns(base()), 2.0)
    assert seen.due(S) is not None
    saw(seen, 3.0, target="c", times=1)
    assert [one.seen_ns for one in seen.kept(2 * S).pairs] == [S, 2 * S]
    (pair,) = seen.kept(S + KEEP_NS).pairs
    assert pair.target == "c"
    assert cell(seen.due(S + KEEP_NS), "a", "b") == (0.1, 0.2, PredictionTier.LEARNED)
    assert cell(saw(seen, 1.5).due(S + KEEP_NS + TELL_NS), "a", "b")[0] == round(math.log(1.5), 3)


def test_so_is_what_was_kept_for_a_week() -> None:
    kept = saw(ObservedSlowdowns(base()), 2.0).kept(S)
    assert ObservedSlowdowns(base(), kept).due(S + KEEP_NS - 1) is not None
    assert ObservedSlowdowns(base(), kept).due(S + KEEP_NS) is None
    assert ObservedSlowdowns(base(), kept).kept(S + KEEP_NS).pairs == ()


def test_a_clock_that_went_back_keeps_nothing_for_longer_than_a_week() -> None:
    seen = ObservedSlowdowns(base(), saw(ObservedSlowdowns(base()), 2.0).kept(1_000 * KEEP_NS))
    assert [one.seen_ns for one in seen.kept(5 * S).pairs] == [5 * S]
    assert seen.kept(5 * S + KEEP_NS).pairs == ()


# --- kept ---


def test_another_process_goes_on_from_what_was_kept() -> None:
    seen = saw(ObservedSlowdowns(base()), 2.0)
    saw(seen, 1.5, times=2, others=["c", "d"])
    seen.ban("A100", "c", "d", S)
    other = ObservedSlowdowns(base(), decode(encode(seen.kept(2 * S))))
    assert other.kept(2 * S) == seen.kept(2 * S)
    mine, its = seen.due(3 * S), other.due(3 * S)
    assert mine is not None
    assert its is not None
    assert np.allclose(InterferenceView(mine).mean, InterferenceView(its).mean, atol=1e-4)
    assert mine.tier == its.tier


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": "weft.dev/observed/v2"}',
        '{"pairs": [{}]}',
        '{"pairs": [{"gpu_model": "", "target": "a", "others": [], "mean": 0, "values": [0]}]}',
        '{"pairs": [{"gpu_model": "", "target": "a", "others": ["b"], "mean": 0, "values": []}]}',
        '{"pairs": [{"gpu_model": "", "target": "a", "others": ["b"], "mean": 99, "values": [0]}]}',
        '{"pairs": [{"gpu_model": "", "target": "a", "others": ["b"], "mean": null, "values": []}]}',  # noqa: E501
        '{"more": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
)
def test_nonsense_is_an_error(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text)


def test_it_stays_small_and_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_slowdown, "MOST_PAIRS", 3)
    monkeypatch.setattr(observed_slowdown, "MOST_BANS", 3)
    seen = ObservedSlowdowns(base())
    for target in ("a", "b", "c", "a", "d"):
        saw(seen, 2.0, times=30, target=target, others=["d"])
        seen.ban("V100", target, "d", S)
    kept = seen.kept(S)
    assert [one.target for one in kept.pairs] == ["c", "a", "d"]
    assert {len(one.values) for one in kept.pairs} == {observed_slowdown.MOST_VALUES}
    assert [ban.application for ban in kept.bans] == ["c", "a", "d"]
    assert cell(seen.due(S), "b", "d")[2] == PredictionTier.LEARNED


things = st.tuples(
    st.sampled_from(["V100", "H100"]),
    st.sampled_from("abxy"),
    st.lists(st.sampled_from("abxy"), max_size=3),
    st.floats(allow_nan=True, allow_infinity=True),
)


@given(st.lists(things, max_size=40), st.lists(things, max_size=3))
def test_whatever_is_seen_the_table_makes_sense_and_replays(seen: list, banned: list) -> None:
    found = ObservedSlowdowns(base())
    for model, target, others, slowdown in seen:
        found.saw(model, target, others, slowdown)
    for model, target, others, _ in banned:
        found.ban(model, target, "".join(others[:1]), S)
    told = found.due(S)
    if told is not None:
        again = InterferenceView(
            msgspec.convert(msgspec.json.decode(msgspec.json.encode(told)), InterferenceTable)
        )
        assert again.source == told
        assert np.isfinite(again.mean).all()
        assert not np.isnan(again.upper).any()
        for ban in found.bans(S):
            assert cell(told, ban.application, ban.other, ban.gpu_model)[1] == math.inf
    assert decode(encode(found.kept(S))) == found.kept(S)
