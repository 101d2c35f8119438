"""Datasets, tables of pairs and models that make no sense, or look unusual, are named as such."""

from typing import Any

import msgspec
import pytest
from interference_world import GPU, QUICK, SHARING, world

from weft.interference import dataset
from weft.interference.ladder import Predictor, fit
from weft.interference.model_file import SCHEMA, PredictorFile, decode, encode
from weft.interference.public_datasets import gavel, static_table
from weft.interference.records import CoLocatedRun, Measurements
from weft.model.errors import BadInputError

SOLO = {
    "application": "a",
    "gpu_model": "T4",
    "isolation": "mps",
    "rate_per_s": 10.0,
    "features": {"sm_active_ratio": {"mean": 0.5, "p95": 0.6}},
}
CORUN = {
    "target": "a",
    "aggressors": ["b"],
    "gpu_model": "T4",
    "isolation": "mps",
    "rate_per_s": 5.0,
    "speed": 0.5,
    "runs": 3,
}


def told(solo: list[Any], corun: list[Any]) -> bytes:
    return msgspec.json.encode(
        {
            "apiVersion": dataset.API_VERSION,
            "kind": dataset.KIND,
            "solo": solo,
            "corun": corun,
        }
    )


@pytest.mark.parametrize(
    ("solo", "corun", "says"),
    [
        ({}, {"speed": -0.5}, r"d\.json, corun\[0\] \(a beside b on T4 mps\), field speed: -0.5"),
        ({}, {"speed": 85}, r"field speed: 85.0 .*0.85"),
        ({}, {"runs": 0}, "field runs: 0"),
        ({}, {"rate_per_s": -1}, "field rate_per_s: -1.0"),
        ({}, {"aggressors": []}, "field aggressors: is empty"),
        ({}, {"aggressors": [""]}, "field aggressors: .* empty"),
        ({}, {"target": ""}, "field target: .*empty"),
        ({"application": ""}, {}, r"solo\[0\] .*field application: .*empty"),
        ({"rate_per_s": -3}, {}, "field rate_per_s: -3.0"),
        ({"memory_mib": -3}, {}, "field memory_mib: -3"),
        (
            {"features": {"sm_active_ratio": {"mean": 55, "p95": 60}}},
            {},
            r"solo\[0\] \(a on T4 mps\), field features.sm_active_ratio.mean: 55.0 .*0.55",
        ),
        ({"features": {"power_w": {"mean": 9.3e18, "p95": 1}}}, {}, "features.power_w.mean"),
    ],
)
def test_a_dataset_that_makes_no_sense_says_where(
    solo: dict[str, Any], corun: dict[str, Any], says: str
) -> None:
    assert dataset.decode(told([SOLO], [CORUN]), "d.json")
    with pytest.raises(BadInputError, match=says):
        dataset.decode(told([SOLO | solo], [CORUN | corun]), "d.json")


def test_a_dataset_knows_an_application_alone_once() -> None:
    with pytest.raises(BadInputError, match=r"d\.json, solo\[1\] \(a on T4 mps\): is listed twice"):
        dataset.decode(told([SOLO, SOLO], []), "d.json")


def test_a_dataset_may_begin_with_a_byte_order_mark() -> None:
    body = told([SOLO], [CORUN])
    assert dataset.decode(b"\xef\xbb\xbf" + body, "d.json") == dataset.decode(body, "d.json")


def test_who_was_only_measured_beside_others_counts_too() -> None:
    """Profiles may be missing: a pair that was measured is known all the same."""
    whole = world()
    bare = Measurements("x", whole.solos[3:], whole.runs)
    cell = bare.cell(GPU, SHARING)
    assert {one.application for one in cell.solos} == {one.application for one in whole.solos}
    predictor = Predictor(fit(bare, QUICK))
    missing = whole.solos[0].application
    assert len(predictor.cell.runs) == len(whole.runs)
    assert predictor.predict(missing, [whole.solos[4].application]).rung == "learned"
    thrice = [CoLocatedRun("p", ("q",), GPU, SHARING, 0.5, 3)]
    assert (
        Predictor(fit(Measurements("x", (), tuple(thrice)))).predict("p", ["q"]).rung == "measured"
    )


HEAD = (
    "source,gpu,job_a,job_b,iso_a_steps_per_s,iso_b_steps_per_s,colo_a_steps_per_s,"
    "colo_b_steps_per_s,feasible"
)
CSV = f"{HEAD}\none,v100,A,A,10,10,4,6,1\none,v100,A,B,10,20,5,16,1\none,v100,A,C,10,5,0,0,0\n"


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + CSV,
        CSV.replace("\n", "\r\n"),
        CSV.replace("\n", "\r"),
        CSV.replace(HEAD, '"' + HEAD.replace(",", '","') + '"'),
        CSV.replace(",", ", "),
        CSV.replace("A,C,10,5,0,0,0", "A,C,10,5,-1,-1,0"),
        CSV.replace("5,0,0,0", "5,,,0"),
        CSV + "\n\n",
    ],
    ids=["mark", "windows", "mac", "quoted", "blanks", "minus one", "left out", "empty lines"],
)
def test_pairs_as_spreadsheets_write_them(text: str) -> None:
    assert gavel(text, "p.csv") == gavel(CSV, "p.csv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CSV.replace(",", ";"), r"p\.csv, line 1: .*';'.*commas"),
        (CSV.replace(",", "\t"), r"p\.csv, line 1: .*tab.*commas"),
        (
            CSV.replace("5,16,1", "5,16,yes"),
            "line 3, field feasible: 'yes' is unknown; write 1 or 0",
        ),
        (CSV.replace("A,B,10", "A,,10"), "line 3, field job_b: is empty"),
        (CSV.replace("5,16,1", "500,16,1"), "line 3, field colo_a_steps_per_s: .*50"),
        (CSV.replace("10,20,5", "0,20,5"), "line 3: a feasible pair with a rate of 0"),
        ("", r"p\.csv: is empty"),
        ("a,b\n1,2\n", r"p\.csv, line 1: lacks the columns source, gpu"),
    ],
)
def test_pairs_that_make_no_sense_say_where(text: str, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        gavel(text, "p.csv")


@pytest.fixture(scope="module")
def model() -> dict[str, Any]:
    """A model of a small world, as each test reads it."""
    small = world(families=3, sizes=2, profiles=True)
    body = encode(PredictorFile(SCHEMA, "0", ("x",), (fit(small, QUICK),)))
    assert decode(body, "m").cells
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cells",), []),
        (("cells", 0, "learned", "near", 0, "link"), "other"),
        (("cells", 0, "runs", 0, "target"), "ghost"),
        (("cells", 0, "runs", 0, "speed"), -1),
        (("cells", 0, "additive", "suffers"), [1.0]),
        (("cells", 0, "learned", "near"), []),
        (("cells", 0, "learned", "far", 0, "columns"), ["zz"]),
        (("cells", 0, "learned", "far", 0, "target", "lengths"), []),
        (("cells", 0, "learned", "near", 0, "noise"), -1),
        (("cells", 0, "learned", "scales", "centre"), []),
        (("cells", 0, "learned", "trees"), ["x", "y", "z"]),
        (("cells", 0, "solos", 0, "application"), "ghost"),
    ],
)
def test_a_model_whose_parts_do_not_fit_is_refused(
    model: dict[str, Any], path: tuple[str | int, ...], value: object
) -> None:
    if "trees" in path:
        pytest.importorskip("lightgbm")
    broken = msgspec.json.decode(msgspec.json.encode(model))
    at = broken
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    with pytest.raises(BadInputError, match=r"^m.*(not a model|train it again)"):
        decode(msgspec.json.encode(broken), "m")


@pytest.mark.parametrize("value", [1e7, 1e200, 1e-7])
def test_a_slowdown_beyond_all_measure_is_an_error_that_says_how_to_forbid(value: float) -> None:
    with pytest.raises(BadInputError, match=r"t\.json, a beside b: .* or -1 to forbid the pair"):
        static_table(f'{{"a": {{"b": {value}}}}}', "t.json")
