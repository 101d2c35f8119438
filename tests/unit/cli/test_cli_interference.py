"""`weft interference`: from a dataset's file to predictions, and how errors end."""

import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from commands import Weft

from weft.cli.interference import train
from weft.interference.dataset import (
    API_VERSION,
    KIND,
    CoLocationSample,
    Dataset,
    Feature,
    SoloProfile,
    encode,
)
from weft.model.interference_table import InterferenceTable, InterferenceView

APPS = {
    f"{family} (batch size {8 * 2**size})": 0.3 + 0.15 * number + 0.05 * size
    for number, family in enumerate(("cnn", "lm", "gan", "rec", "rl", "ssd"))
    for size in range(2)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two GPU models, and a model that was trained on it."""
    folder = tmp_path_factory.mktemp("interference")
    solos, coruns = [], []
    for model, size in (("big", 1.3), ("small", 0.9)):
        solos += [
            SoloProfile(app, model, "mps", {}, 100, 120, size * 30 / used)
            for app, used in APPS.items()
        ]
        coruns += [
            CoLocationSample(
                one,
                (two,),
                model,
                "mps",
                None,
                1 / max(1.0, (APPS[one] + 0.9 * APPS[two]) / size),
                3 if one == two else 1,
            )
            for one, two in itertools.product(APPS, APPS)
        ]
    (folder / "data.json").write_bytes(
        encode(Dataset(API_VERSION, KIND, {}, tuple(solos), tuple(coruns)))
    )
    train([folder / "data.json"], folder / "model")
    return folder


def test_train_says_what_it_learnt_from_and_gives_the_same_file_again(
    weft: Weft, folder: Path, tmp_path: Path
) -> None:
    said = weft("interference", "train", folder / "data.json", "--to", tmp_path / "again")
    assert said.code == 0, said.err
    assert "big mps: 144 measurements of 12 applications in 6 families" in said.out
    assert (tmp_path / "again").read_bytes() == (folder / "model").read_bytes()


def test_train_computes_on_one_thread_whatever_is_set(weft: Weft, tmp_path: Path) -> None:
    """Several threads round otherwise: the same data would give another file."""
    small = tmp_path / "small.json"
    runs = (CoLocationSample("a", ("b",), "T4", "mps", None, 0.5, 3),)
    small.write_bytes(encode(Dataset(API_VERSION, KIND, {}, (), runs)))
    program = (
        "import os, sys; from pathlib import Path; from weft.cli.interference import train\n"
        "assert 'numpy' not in sys.modules\n"
        f"train([Path({str(small)!r})], Path('/dev/null'))\n"
        "assert 'numpy' in sys.modules\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], os.environ['OMP_NUM_THREADS'])"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "4", "OMP_NUM_THREADS": "4"},
    )
    assert said.stdout.splitlines()[-1] == "1 1"


def test_predict_one_pair_for_people_and_programs(weft: Weft, folder: Path) -> None:
    model, pair = str(folder / "model"), ("cnn (batch size 8)", "ssd (batch size 16)")
    said = weft("interference", "predict", model, *pair, "--gpu-model", "small")
    assert said.code == 0, said.err
    assert "takes 1.4" in said.out
    assert "learned, calibrated" in said.out
    told = weft("interference", "predict", model, *pair, "--gpu-model", "small", "--output", "json")
    found = json.loads(told.out)
    assert math.exp(found["mean"]) == pytest.approx((0.3 + 0.9 * 1.1) / 0.9, abs=0.08)
    alike = weft("interference", "predict", model, pair[0], pair[0], "--gpu-model", "big")
    assert "measured (3 times)" in alike.out


def test_predict_the_table_that_policies_get(weft: Weft, folder: Path) -> None:
    said = weft("interference", "predict", str(folder / "model"), "--output", "json")
    view = InterferenceView(msgspec.convert(json.loads(said.out), InterferenceTable))
    assert isinstance(view.source, InterferenceTable)
    assert view.source.gpu_models == ("big", "small")
    assert view.source.classes == tuple(sorted(APPS))
    assert (view.of("small").mean > view.of("big").mean - 0.05)[:-1, :-1].all()
    people = weft("interference", "predict", str(folder / "model"), "--gpu-model", "big")
    assert len(people.out.splitlines()) == 1 + 12 * 12


def test_explain_names_the_nearest_pairs(weft: Weft, folder: Path) -> None:
    said = weft(
        "interference",
        "predict",
        "--why",
        str(folder / "model"),
        "cnn (batch size 8)",
        "lm (batch size 8)",
        "--gpu-model",
        "big",
    )
    assert said.code == 0, said.err
    assert "the target's sensitivity to neighbours" in said.out
    assert "1.00  cnn (batch size 8) beside lm (batch size 8): speed 1.000" in said.out


def test_explain_as_json_names_its_parts(weft: Weft, folder: Path) -> None:
    said = weft(
        "interference",
        "predict",
        "--why",
        str(folder / "model"),
        "cnn (batch size 8)",
        "lm (batch size 8)",
        "--gpu-model",
        "big",
        "--output",
        "json",
    )
    found = json.loads(said.out)
    assert found["prediction"]["rung"] == "learned"
    assert set(found["nearest"][0]) == {"target", "other", "speed", "likeness"}


def test_a_name_that_nobody_knows_is_said_to_be_unknown(weft: Weft, folder: Path) -> None:
    said = weft(
        "interference",
        "predict",
        str(folder / "model"),
        "cnn (batch size 8)",
        "lm (batch size 9)",
        "--gpu-model",
        "big",
        "--output",
        "json",
    )
    assert json.loads(said.out)["rung"] == "unknown"
    assert "has no application 'lm (batch size 9)' (did you mean 'lm (batch size 8)'?)" in said.err


def test_a_model_is_written_whole_or_not_at_all(
    weft: Weft, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"old")
    small = tmp_path / "small.json"
    runs = (CoLocationSample("a", ("b",), "T4", "mps", None, 0.5, 3),)
    small.write_bytes(encode(Dataset(API_VERSION, KIND, {}, (), runs)))

    def full(path: Path, target: object) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        said = weft("interference", "train", small, "--to", kept)
    assert said.code == 1
    assert f"{kept}: cannot be written: No space left" in said.err
    assert kept.read_bytes() == b"old"
    assert not list(tmp_path.glob(".*"))
    assert weft("interference", "train", small, "--to", "/dev/null").code == 0
    assert not Path("/dev/null").is_file()


def test_without_lightgbm_everything_works_and_says_so(
    weft: Weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightgbm")
    names = [
        f"{kind}-{number}" for kind in ("cnn-train", "lm-train") for number in (8, 16, 32, 64, 128)
    ]
    looked = {name: Feature(0.07 * at + 0.2, 0.9) for at, name in enumerate(names)}
    solos = tuple(
        SoloProfile(
            name, "T4", "mps", {"sm_active_ratio": one, "gpu_util_ratio": one}, rate_per_s=10
        )
        for name, one in looked.items()
    )
    runs = tuple(
        CoLocationSample(a, (b,), "T4", "mps", None, 1 / max(1.0, looked[a].mean + looked[b].mean))
        for a in names
        for b in names
    )
    data, model = tmp_path / "profiled.json", tmp_path / "model"
    data.write_bytes(encode(Dataset(API_VERSION, KIND, {}, solos, runs)))
    assert weft("interference", "train", data, "--to", model).err == ""
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    told = weft("interference", "predict", model, *names[:2], "--output", "json")
    assert json.loads(told.out)["calibrated"] is False
    assert f"{model} was learnt with LightGBM, which is not installed" in told.err
    for words in (
        ("train", data, "--to", model),
        ("evaluate", data, "--split", "new pair", "--seeds", "1"),
    ):
        said = weft("interference", *words)
        assert said.code == 0
        assert "T4 mps has profiles, but LightGBM is not installed" in said.err
    assert "sum of utilisation" in said.out
    assert weft("interference", "predict", model, *names[:2]).err == ""


def test_evaluate_says_what_it_could_not_examine(weft: Weft, tmp_path: Path) -> None:
    one = tmp_path / "one.json"
    runs = tuple(CoLocationSample(a, (b,), "T4", "mps", None, 0.5) for a in "ab" for b in "ab")
    one.write_bytes(encode(Dataset(API_VERSION, KIND, {}, (), runs)))
    said = weft("interference", "evaluate", one)
    assert said.code == 1
    assert "one T4 mps: 'new GPU' is not evaluated: no other GPU model" in said.err
    assert "one T4 mps: 'new pair' is not evaluated: fewer than 24 pairs" in said.err
    assert "no comparison with the sum of utilisation: for 2 of 2 applications" in said.err
    assert "error: " in said.err


def test_evaluate_says_how_well_beside_the_baselines(
    weft: Weft, folder: Path, tmp_path: Path
) -> None:
    said = weft(
        "interference",
        "evaluate",
        str(folder / "data.json"),
        "--seeds",
        "1",
        "--split",
        "new pair",
        "--split",
        "new GPU",
        "--gpu-model",
        "big",
        "--output",
        "json",
        "--report",
        str(tmp_path / "report"),
    )
    assert said.code == 0, said.err
    found = {one["split"]: one for one in json.loads(said.out)}
    assert set(found) == {"new pair", "new GPU"}
    methods = found["new pair"]["methods"]
    assert set(methods) == {"weft", "constant", "ridge"}
    assert methods["weft"]["mae"] < methods["ridge"]["mae"] < methods["constant"]["mae"]
    assert 0 <= methods["weft"]["coverage"] <= 1
    assert [wanted for wanted, _ in found["new GPU"]["curve"]][:2] == [0.5, 0.6]
    figure = (tmp_path / "report" / "calibration-data-big-mps.svg").read_text()
    assert "how often the bound should hold" in figure
    assert json.loads((tmp_path / "report" / "evaluation.json").read_text())


def test_a_static_table_predicts_too(weft: Weft, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"a": {"a": 1.5, "b": -1}, "b": {"a": -1, "b": 1.02}}')
    said = weft("interference", "predict", str(path))
    assert "forbidden" in said.out
    one = weft("interference", "predict", str(path), "a", "a")
    assert "takes 1.50× as long" in one.out
    made = weft("interference", "predict", str(path), "a", "a", "--why")
    assert made.code == 1
    assert "is a table of given slowdowns" in made.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["predict", "model", "cnn (batch size 8)", "x"], "--gpu-model: is needed: "),
        (["predict", "model", "cnn (batch size 8)", "--gpu-model", "big"], "needs co-residents"),
        (["predict", "model", "--gpu-model", "H100"], "--gpu-model: 'H100' is unknown; "),
        (["predict", "nowhere"], "cannot be read: No such file"),
        (["predict", "data.json"], "is not a table of slowdowns"),
        (["train", "model", "--to", "x"], "is not an interference dataset"),
        (
            ["train", "data.json", "--source", "no", "--to", "x"],
            "--source: 'no' is unknown; these files have ",
        ),
        (["train", "data.json", "data.json", "--to", "x"], "choose one with --source"),
        (
            ["evaluate", "data.json", "--split", "old pair"],
            "--split: 'old pair' is unknown; did you mean 'new pair'?",
        ),
        (
            ["evaluate", "data.json", "--gpu-model", "T4"],
            "'T4' is unknown; these files have big, small",
        ),
        (["train", "data.json", "--to", "/no/such/x"], "there is no folder /no/such"),
        (["train", "broken.csv", "--to", "x"], "line 1: lacks the columns source, gpu, job_b"),
        (["train", "latin.csv", "--to", "x"], "latin.csv, byte 0: is not UTF-8"),
    ],
)
def test_errors_name_what_is_wrong(
    weft: Weft, folder: Path, arguments: list[str], says: str
) -> None:
    paths = {"model", "data.json", "nowhere", "broken.csv", "latin.csv"}
    (folder / "broken.csv").write_text("job_a\nA\n")
    (folder / "latin.csv").write_bytes("é".encode("latin-1"))
    said = weft("interference", *(str(folder / a) if a in paths else a for a in arguments))
    assert said.code == 1
    assert said.err.startswith("weft: error: ")
    assert says in said.err
