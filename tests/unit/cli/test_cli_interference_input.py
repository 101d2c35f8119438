"""Where policies' interference comes from: files, the configuration, and a simulation's option."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from weft.cluster.config.form import Configuration, ExtenderSettings, InterferenceSettings
from weft.cluster.config.read import decode, read
from weft.host.interference_files import read_interference
from weft.host.prediction_files import files_of
from weft.interference.public_datasets import slowdowns
from weft.interference.table import from_static
from weft.model import BadInputError
from weft.model.interference_table import ANY_MODEL, InterferenceView, PredictionTier

TABLE = {"A": {"A": 1.5, "B": -1}, "B": {"A": -1, "B": 1.2}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "table.json"
    found.write_text(json.dumps(TABLE))
    return found


def test_a_table_counts_on_every_model_of_gpu(file: Path) -> None:
    view = InterferenceView(read_interference(file))
    card = view.of("V100")
    assert view.source.gpu_models == (ANY_MODEL,)
    assert np.exp(card.mean[0, 0]) == pytest.approx(1.5)
    assert np.isinf(card.upper[0, 1])
    assert card.tier[:2, :2].tolist() == [[PredictionTier.TABLE] * 2] * 2
    unknown = view.index_of("who")
    assert card.tier[unknown, 0] == -PredictionTier.UNKNOWN
    assert np.exp(card.mean[unknown, 0]) == pytest.approx(1.5), "as the worst that is known"


def test_predictions_as_weft_writes_them(tmp_path: Path) -> None:
    told = from_static(1, slowdowns(TABLE, "table.json"))
    path = tmp_path / "told.json"
    path.write_bytes(msgspec.json.encode(told))
    assert read_interference(path) == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"A": 1}',
        '{"A": {"B": 0}}',
        '{"A": {"B": "x"}}',
        '{"classes": ["a"]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadInputError, match=r"bad\.json"):
        InterferenceView(read_interference(path))


def test_the_configuration_names_it_or_it_lies_where_it_did(file: Path) -> None:
    named = Configuration(interference=InterferenceSettings(table=str(file)))
    found = files_of(named).read().interference
    assert found is not None
    assert found.classes == ("A", "B")
    usual = ExtenderSettings(enabled=True, interference_table=str(file))
    lies = files_of(Configuration(extender=usual)).read().interference
    assert lies is not None
    assert (lies.classes, lies.mean) == (found.classes, found.mean)
    off = msgspec.structs.replace(usual, enabled=False)
    assert not files_of(Configuration(extender=off)).named
    assert files_of(Configuration(extender=off)).read().interference is None
    missing = Configuration(interference=InterferenceSettings(model="/no/such"))
    with pytest.raises(BadInputError, match=r"interference\.model: /no/such: cannot be read"):
        files_of(missing).read()


def test_a_table_that_is_named_counts_before_the_extenders(file: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"C": {"C": 1.5}}))
    both = Configuration(
        interference=InterferenceSettings(table=str(own)),
        extender=ExtenderSettings(enabled=True, interference_table=str(file)),
    )
    found = files_of(both).read().interference
    assert found is not None
    assert found.classes == ("C",)


def test_table_and_model_exclude_each_other() -> None:
    text = b"apiVersion: weft.dev/v1\nkind: WeftConfiguration\ninterference: {table: a, model: b}\n"
    with pytest.raises(
        BadInputError,
        match=r"interference\.model: cannot be set together with interference\.table; remove",
    ):
        decode(text, "weft.yaml")


def test_profiles_say_how_fast_applications_go_alone(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    solo = {"application": "bert", "gpu_model": "T4", "isolation": "mps", "rate_per_s": 12.5}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "weft.dev/v1",
                "kind": "InterferenceDataset",
                "solo": [solo],
            }
        )
    )
    named = Configuration(interference=InterferenceSettings(profiles=str(path)))
    (found,) = files_of(named).read().solos
    assert (found.application, found.gpu_model, found.rate_per_s) == ("bert", "T4", 12.5)
    path.write_text("{}")
    with pytest.raises(BadInputError, match=r"weft\.yaml: interference\.profiles: /.*\.json: is"):
        files_of(named, "weft.yaml").read()


def test_a_file_of_distances_that_is_not_there_is_found_before_the_start(tmp_path: Path) -> None:
    path = tmp_path / "weft.yaml"
    path.write_text(
        "apiVersion: weft.dev/v1\nkind: WeftConfiguration\ninterference: {mystic: /no/such}\n"
    )
    with pytest.raises(BadInputError, match=r"interference\.mystic: /no/such cannot be read"):
        read(path)


def test_simulate_tells_policies(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two pods of one application may share the only GPU, of the two others none."""
    from commands import Weft

    weft = Weft(tmp_path, monkeypatch, capsys)
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,64000,1,T4\n")
    rows = [f"p{i},1000,1000,1,500,{kind}" for i, kind in enumerate(("A", "B"))]
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,application"
    pods.write_text("\n".join([head, *rows]) + "\n")
    words = (
        "simulate",
        "--nodes",
        nodes,
        "--pods",
        pods,
        "--policy",
        "coscheml",
        "--demand",
        "1",
        "--output",
        "json",
        "--no-timing",
    )
    placed = []
    for more in ((), ("--interference", file)):
        said = weft(*words, *more)
        assert said.code == 0, said.err
        placed.append(json.loads(said.out)["runs"][0]["used_gpu_milli"])
    assert placed == [1000, 500]


def test_simulate_tells_mystics_distances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The third pod joins the one that is farther from it, whichever that is."""
    from commands import Weft

    weft = Weft(tmp_path, monkeypatch, capsys)
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text("sn,cpu_milli,memory_mib,gpu,model\nn,64000,64000,1,T4\nm,64000,64000,1,T4\n")
    rows = [f"p{kind},1000,1000,1,300,{kind},{at},," for at, kind in enumerate("ABC")]
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,application,creation_time,deletion_time"
    pods.write_text("\n".join([f"{head},scheduled_time", *rows]) + "\n")
    far = tmp_path / "far.json"
    decisions = tmp_path / "decisions"
    joined = []
    for distances in ({"A": 1.0, "B": 2.0}, {"A": 2.0, "B": 1.0}):
        far.write_text(json.dumps({"C": distances, "A": {"C": 0.0}}))
        said = weft(
            "simulate",
            "--nodes",
            nodes,
            "--pods",
            pods,
            "--policy",
            "coscheml:pairing=mystic",
            "--mystic",
            far,
            "--timed",
            "--decisions",
            decisions,
        )
        assert said.code == 0, said.err
        told = [
            weft("explain", "pod", name, "--decisions", decisions) for name in ("pC", "pA", "pB")
        ]
        third, *two = [said.out.splitlines()[1] for said in told]
        assert third in two
        joined.append("AB"[two.index(third)])
    assert joined == ["B", "A"]
    far.write_text('{"A": 1}')
    said = weft(
        "simulate", "--nodes", nodes, "--pods", pods, "--policy", "coscheml", "--mystic", far
    )
    assert said.code == 1
    assert f"--mystic: {far}: is not a table of distances" in said.err
