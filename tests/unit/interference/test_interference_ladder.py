"""The ladder: which rung speaks, what several neighbours do, what is forbidden, what is kept."""

import math
import sys

import msgspec
import numpy as np
import pytest
from interference_world import GPU, QUICK, SHARING, demand, speed, world

from weft.interference import trees, utilisation
from weft.interference.history import DEVIATIONS, NOISE, History
from weft.interference.ladder import Predictor, PredictorCell, fit
from weft.interference.model_file import SCHEMA, PredictorFile, decode, encode
from weft.interference.prediction_reasons import because
from weft.interference.public_datasets import gavel, static_table
from weft.interference.records import CoLocatedRun, Measurements, SoloRun, family_and_batch
from weft.interference.table import from_predictors, from_static
from weft.model.errors import BadInputError
from weft.model.interference_table import (
    ANY_MODEL,
    INTERFERENCE,
    InterferenceTable,
    InterferenceView,
    PredictionTier,
    interference,
    to_input,
)

CNN, LM = "cnn (batch size 8)", "lm (batch size 16)"


@pytest.fixture(scope="module")
def learned() -> PredictorCell:
    return fit(world(), QUICK)


def test_history_is_an_ewma_with_a_spread_of_deviations() -> None:
    history = History()
    for value in (0.2, 0.4):
        history.saw("a", ["b", "c"], value)
    assert history.of("a", ["c", "b"]) is None
    history.saw("a", ["c", "b"], 0.3)
    found = history.of("a", ["b", "c"])
    assert found is not None
    assert found.mean == pytest.approx(0.7 * (0.7 * 0.2 + 0.3 * 0.4) + 0.3 * 0.3)
    assert found.upper == pytest.approx(found.mean + DEVIATIONS * 0.1)
    assert found.times == 3
    steady = History([CoLocatedRun("a", ("b",), GPU, SHARING, 0.5, 5)]).of("a", ["b"])
    assert steady == pytest.approx((math.log(2), math.log(2) + NOISE, 5))


@pytest.mark.parametrize(
    ("total", "memory", "slower"),
    [(0.5, 0.0, 1.0), (1.0, 0.5, 0.9616), (1.88, 1.9, 0.52)],
)
def test_hinge(total: float, memory: float, slower: float) -> None:
    assert utilisation.speed_of(total, memory) == pytest.approx(slower)


def test_whose_memory_activity_is_unknown_hides_nobody_elses() -> None:
    looked = {"gpu_util_ratio.mean": 0.5}
    one, two = (SoloRun(name, GPU, SHARING, features=looked) for name in "ab")
    busy = msgspec.structs.replace(two, features={**looked, "memory_copy_ratio.mean": 1.0})
    assert utilisation.by_utilisation(one, [two]) == utilisation.slowdown_of(
        utilisation.speed_of(1.0)
    )
    assert utilisation.by_utilisation(one, [busy]) == utilisation.slowdown_of(
        utilisation.speed_of(1.0, 1.0)
    )
    assert utilisation.by_utilisation(busy, [one]) == utilisation.slowdown_of(
        utilisation.speed_of(1.0, 1.0)
    )


def test_unknown_is_the_hinge_at_a_full_card() -> None:
    assert utilisation.unknown() == pytest.approx((-math.log(0.9616), -math.log(0.7616)))


@pytest.mark.parametrize(
    ("name", "family", "batch"),
    [
        ("ResNet-18 (batch size 64)", "ResNet-18", 64.0),
        ("resnet-infer-64", "resnet-infer", 64.0),
        ("bert-bs32", "bert", 32.0),
        ("ResNet-18", "ResNet-18", None),
        ("resnet50", "resnet50", None),
        ("A3C", "A3C", None),
        ("gan (wide)", "gan", None),
    ],
)
def test_family_and_batch_size_are_read_off_names(
    name: str, family: str, batch: float | None
) -> None:
    found = family_and_batch(name)
    assert found[0] == family
    assert math.isnan(found[1]) if batch is None else found[1] == batch


def test_learned_speaks_of_known_applications_and_is_near_the_truth(learned: PredictorCell) -> None:
    predictor = Predictor(learned)
    found = predictor.predict(CNN, [LM])
    assert found.rung == "learned"
    assert found.calibrated
    assert math.exp(-found.mean) == pytest.approx(
        speed(demand("cnn", 0), demand("lm", 1)), abs=0.03
    )
    assert found.upper > found.mean


def test_a_new_family_known_alone_is_predicted_with_a_wider_bound(learned: PredictorCell) -> None:
    new = SoloRun("ssd", GPU, SHARING, "ssd", 16.0, 40 / demand("ssd", 1))
    predictor = Predictor(learned, [new])
    found, known = predictor.predict("ssd", [LM]), predictor.predict(CNN, [LM])
    assert found.rung == "learned"
    assert found.upper - found.mean > known.upper - known.mean
    truth = speed(demand("ssd", 1), demand("lm", 1))
    assert math.exp(-found.mean) == pytest.approx(truth, abs=0.15)


def test_nothing_known_is_unknown_and_uncalibrated(learned: PredictorCell) -> None:
    found = Predictor(learned).predict("who", [LM])
    assert (found.rung, found.calibrated) == ("unknown", False)
    assert (found.mean, found.upper) == utilisation.unknown()


def test_too_few_measurements_are_added_up_and_then_utilisation_speaks() -> None:
    full = world(families=3, sizes=1, profiles=True)
    predictor = Predictor(fit(full, QUICK))
    assert predictor.cell.learned is None
    a, b = full.solos[0].application, full.solos[1].application
    assert predictor.predict(a, [b]).rung == "additive"
    new = msgspec.structs.replace(full.solos[0], application="new")
    found = Predictor(predictor.cell, [new]).predict("new", [b])
    total = demand("cnn", 0) + demand("lm", 0)
    assert found.rung == "hinge"
    assert found.mean == pytest.approx(-math.log(utilisation.speed_of(total)))


def test_three_measurements_outrank_what_was_learnt(learned: PredictorCell) -> None:
    predictor = Predictor(learned)
    first = -math.log(speed(demand("cnn", 0), demand("lm", 1)))  # once, when it was learnt
    for _ in range(2):
        assert predictor.predict(CNN, [LM]).rung == "learned"
        predictor.saw(CNN, [LM], 0.5)
    found = predictor.predict(CNN, [LM])
    assert (found.rung, found.times) == ("measured", 3)
    assert found.mean == pytest.approx(0.49 * first + 0.51 * math.log(2))


def test_observed_progress_corrects_other_pairs_of_the_same_victim(learned: PredictorCell) -> None:
    predictor, other = Predictor(learned), "gan (batch size 8)"
    before = predictor.predict(CNN, [other]).mean
    for _ in range(2):
        predictor.saw(CNN, [LM], math.exp(-predictor.predict(CNN, [LM]).mean) * 0.6)
    assert predictor.predict(CNN, [other]).mean > before + 0.1


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_speed_teaches_nothing(learned: PredictorCell, speed: float) -> None:
    predictor = Predictor(learned)
    before = predictor.predict(CNN, [LM])
    for _ in range(3):
        predictor.saw(CNN, [LM], speed)
    assert predictor.predict(CNN, [LM]) == before


def test_several_neighbours_slow_down_by_the_sum_of_logs(learned: PredictorCell) -> None:
    predictor, gan = Predictor(learned), "gan (batch size 8)"
    one, two = predictor.predict(CNN, [LM]), predictor.predict(CNN, [gan])
    both = predictor.predict(CNN, [LM, gan])
    assert both.mean == pytest.approx(one.mean + two.mean)
    assert both.upper == pytest.approx(one.upper + two.upper)
    assert predictor.predict(CNN, ["who", LM]).rung == "unknown"
    assert predictor.predict(CNN, []).mean == 0.0


def test_what_ran_out_of_memory_together_is_forbidden() -> None:
    whole = world()
    cell = fit(Measurements("x", whole.solos, whole.runs, (((LM, CNN), GPU, SHARING),)), QUICK)
    predictor = Predictor(cell)
    assert predictor.predict(CNN, [LM]).upper == math.inf
    assert math.isfinite(predictor.predict(CNN, [LM]).mean)
    table = InterferenceView(from_predictors(1, [predictor], [CNN, LM]))
    assert table.slowdown(GPU, 1, [0]).upper == math.inf
    assert math.isfinite(table.slowdown(GPU, 0, [0]).upper)


def test_the_table_says_what_the_ladder_says(learned: PredictorCell) -> None:
    predictor = Predictor(learned)
    names = [*(one.application for one in learned.solos[:4]), "who"]
    table = InterferenceView(from_predictors(7, [predictor], names, ["toy"]))
    for row, target in enumerate(names):
        for column, other in enumerate(names):
            one, found = predictor.predict(target, [other]), table.slowdown(GPU, row, [column])
            assert found.mean == pytest.approx(one.mean)
            assert found.upper == pytest.approx(one.upper)
            assert found.tier.name.lower() == one.rung
            assert found.calibrated == one.calibrated
    unknown = table.slowdown(GPU, table.unknown, [0])
    assert unknown.tier is PredictionTier.UNKNOWN
    assert unknown.upper >= np.quantile(table.upper[0, :-1, 0], 0.9) - 1e-9
    assert not table.source.calibrated


def test_the_table_survives_the_log_and_unseen_models_get_the_worst_wider(
    learned: PredictorCell,
) -> None:
    other = msgspec.structs.replace(learned, gpu_model="slow")
    told = from_predictors(1, [Predictor(learned), Predictor(other)], [CNN, LM])
    line = msgspec.json.encode({"policy": INTERFERENCE, "value": to_input(told)})
    view = InterferenceView(msgspec.convert(msgspec.json.decode(line)["value"], InterferenceTable))
    assert view.source == told
    seen, unseen = view.slowdown("slow", 0, [1]), view.slowdown("new", 0, [1])
    assert unseen.mean == pytest.approx(seen.mean)
    assert unseen.upper - unseen.mean == pytest.approx(1.5 * (seen.upper - seen.mean))
    assert not unseen.calibrated
    assert not view.of("new").seen


def test_a_model_file_gives_the_same_predictor_back(learned: PredictorCell) -> None:
    model = PredictorFile(SCHEMA, "0", ("toy",), (learned,))
    body = encode(model)
    assert body == encode(model)
    again = decode(body, "m").cell(GPU)
    assert again is not None
    assert Predictor(again).predict(CNN, [LM]) == Predictor(learned).predict(CNN, [LM])


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"schema":"weft.dev/interference-model/v0"}', "train it again"),
        (b"\x1f\x8bbroken", "is not a model"),
        (b"[]", "is not a model"),
        (b"", "is not a model"),
    ],
)
def test_a_file_that_is_no_model_says_so(body: bytes, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        decode(body, "m")


def test_profiles_and_lightgbm_make_trees_that_survive_the_file() -> None:
    pytest.importorskip("lightgbm")
    measured = world(sizes=2, profiles=True, noise=0.02)
    three = [
        CoLocatedRun(r.target, (*r.others, LM), GPU, SHARING, r.speed * 0.8)
        for r in measured.runs
        if r.others != (LM,)
    ]
    cell = fit(Measurements("x", measured.solos, (*measured.runs, *three)), QUICK)
    assert cell.learned is not None
    assert len(cell.learned.trees) == 3
    assert cell.learned.many
    again = decode(encode(PredictorFile(SCHEMA, "0", (), (cell,))), "m").cells[0]
    predictor = Predictor(again)
    found = predictor.predict(CNN, [LM, "gan (batch size 8)"])
    apart = [predictor.predict(CNN, [other]).mean for other in (LM, "gan (batch size 8)")]
    assert found.rung == "learned"
    assert found.mean != pytest.approx(sum(apart))
    told = because(predictor, CNN, LM)
    assert told.nearest[0].target == CNN
    assert told.nearest[0].other == LM
    assert told.trees


def test_without_lightgbm_kernels_speak_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = world(sizes=2, profiles=True)
    pytest.importorskip("lightgbm")
    with_trees = fit(measured, QUICK)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert not trees.available()
    cell = fit(measured, QUICK)
    assert cell.learned is not None
    assert cell.learned.trees == ()
    found = Predictor(cell).predict(CNN, [LM])
    assert (found.rung, found.calibrated) == ("learned", True)
    told = Predictor(with_trees).predict(CNN, [LM])
    assert (told.rung, told.calibrated) == ("learned", False)


GAVEL = (
    "source,gpu,job_a,job_b,iso_a_steps_per_s,iso_b_steps_per_s,colo_a_steps_per_s,"
    "colo_b_steps_per_s,norm_a,norm_b,feasible\n"
    "one,v100,A,A,10,10,4,6,0.4,0.6,1\n"
    "one,v100,A,B (batch size 8),10,20,5,16,0.5,0.8,1\n"
    "one,v100,A,C,10,5,0,0,0,0,0\n"
    "two,p100,A,B (batch size 8),8,20,4,10,0.5,0.5,1\n"
)


def test_gavel_is_read_by_source_each_feasible_pair_once() -> None:
    found = gavel(GAVEL, "pairs.csv")
    assert list(found) == ["one", "two"]
    told = {(r.target, r.others): r.speed for r in found["one"].runs}
    assert told == {
        ("A", ("A",)): 0.5,
        ("A", ("B (batch size 8)",)): 0.5,
        ("B (batch size 8)", ("A",)): 0.8,
    }
    assert found["one"].forbidden == ((("A", "C"), "v100", ""),)
    assert {s.application: s.rate_per_s for s in found["one"].solos} == {
        "A": 10.0,
        "B (batch size 8)": 20.0,
        "C": 5.0,
    }


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (",feasible", "", "line 1: lacks the columns feasible"),
        ("A,A,10,10", "A,A,ten,10", "line 2, field iso_a_steps_per_s: 'ten' is not a rate"),
        ("A,A,10,10,4", "A,A,10,10,0", "line 2: a feasible pair with a rate of 0"),
        ("0.4,0.6,1", "0.4,0.6", "line 2: has a different number of fields"),
    ],
)
def test_gavel_errors_name_line_and_field(old: str, new: str, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        gavel(GAVEL.replace(old, new, 1), "pairs.csv")


def test_a_static_table_is_taken_as_it_is_and_forbids() -> None:
    table = static_table('{"a": {"a": 1.5, "b": -1}, "b": {"a": -1, "b": 1.02}}', "t.json")
    view = InterferenceView(from_static(1, table, "V100"))
    assert math.exp(view.slowdown("V100", 0, [0]).mean) == pytest.approx(1.5)
    assert view.slowdown("V100", 0, [0]).tier is PredictionTier.TABLE
    assert view.slowdown("V100", 0, [1]).upper == math.inf
    assert view.slowdown("V100", view.unknown, [0]).tier is PredictionTier.UNKNOWN
    with pytest.raises(BadInputError, match=r"t.json, a beside b.*not a slowdown"):
        static_table('{"a": {"b": 0}}', "t.json")


@pytest.mark.parametrize("anywhere", [ANY_MODEL, ""])
def test_a_table_of_any_model_counts_where_no_other_is(anywhere: str) -> None:
    models = ["V100", anywhere]
    arrays = tuple(
        np.stack([np.full((2, 2), one), np.full((2, 2), two)])
        for one, two in ((0.1, 0.5), (0.2, 0.6))
    )
    view = InterferenceView(
        interference(1, models, ["a"], (arrays[0], arrays[1], np.ones((2, 2, 2), np.int8)))
    )
    assert view.slowdown("V100", 0, [0])[:2] == (0.1, 0.2)
    assert view.slowdown("T4", 0, [0])[:2] == (0.5, 0.6)
    assert view.of("T4").seen


def test_what_stood_still_is_slow_and_does_not_break_anything() -> None:
    whole = world()
    still = msgspec.structs.replace(whole.runs[1], speed=0.0)
    cell = Measurements("x", whole.solos, (*whole.runs[:1], still, *whole.runs[2:])).cell(
        GPU, SHARING
    )
    assert min(run.speed for run in cell.runs) == 0.01
    found = Predictor(fit(cell, QUICK)).predict(still.target, still.others)
    before = Predictor(fit(whole, QUICK)).predict(still.target, still.others)
    assert found.mean > before.mean + 0.2
    assert math.isfinite(found.upper)
