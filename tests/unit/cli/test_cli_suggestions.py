"""Names that nobody knows: every error says which one was perhaps meant."""

import json

import pytest
from commands import Weft

from weft.model.nearest import nearest, unknown


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("binpak", "binpack"),
        ("BinPack", "binpack"),
        ("kube_knots_cbp", "kube-knots-cbp"),
        ("knots", "kube-knots-cbp"),
        ("xyz", ""),
        ("", ""),
        ("b" * 100_000, ""),
    ],
)
def test_the_nearest_of_some_names(name: str, near: str) -> None:
    assert nearest(name, ["spread", "binpack", "kube-knots-cbp"]) == near


def test_short_lists_are_told_whole_and_long_ones_only_without_a_near_name() -> None:
    many = [f"policy-{letter}" for letter in "abcdefghij"]
    assert unknown("polcy-b", many) == "'polcy-b' is unknown; did you mean 'policy-b'?"
    assert unknown("q", many).startswith("'q' is unknown; write one of policy-a, policy-b")
    few = "'spred' is unknown; did you mean 'spread'? Write one of pack, spread"
    assert unknown("spred", ["pack", "spread"]) == few


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("simulat",), "'simulate'"),
        (("explain", "pdo"), "'pod'"),
        (("profile", "mesure"), "'measure'"),
        (("simulate", "--polcy", "fgd"), "--policy"),
        (("metrics", "--kubeconfg", "x"), "--kubeconfig"),
        (("policies", "--output", "jsn"), "'json'"),
        (("policies", "-o", "tabel"), "'table'"),
        (("generate", "pods", "--mix", "share"), "'shared'"),
        (("profile", "measure", "x", "--isolation", "timeslicing"), "'time-slicing'"),
        (("extender", "serve", "--priority", "spred"), "'spread'"),
        (("metrics", "--chek"), "--check"),
    ],
)
def test_commands_options_and_values(weft: Weft, words: tuple[str, ...], near: str) -> None:
    said = weft(*words)
    assert (said.code, said.out) == (2, "")
    assert near in said.err.splitlines()[-1]
    assert "ean" in said.err.splitlines()[-1] or "Possible options" in said.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--policy", "best-fti"), "policy: 'best-fti' is unknown; did you mean 'best-fit'?"),
        (("--policy", "load-aware:mod=pack"), "option 'mod' is unknown; did you mean 'mode'?"),
        (("--policy", "load-aware:mode=pck"), "mode: 'pck' is unknown; did you mean 'pack'?"),
        (("--policy", "coscheml:pairing=mystik"), "did you mean 'mystic'?"),
    ],
)
def test_policies_their_options_and_values(weft: Weft, words: tuple[str, ...], says: str) -> None:
    assert says in weft.error(*words)


def test_files(weft: Weft) -> None:
    said = weft(
        "simulate", "--nodes", weft.folder / "node.csv", "--pods", weft.pods, "--policy", "fgd"
    )
    assert said.err == (
        f"weft: error: {weft.folder}/node.csv: no such file; did you mean '{weft.nodes}'?\n"
    )
    said = weft("replay", weft.folder / "nodes.cvs")
    assert said.err.endswith(f"No such file or directory; did you mean '{weft.nodes}'?\n")
    said = weft("parse", weft.folder / "nodes.cvs")
    assert said.err.endswith(f"no such file; did you mean '{weft.nodes}'?\n")
    said = weft("profile", "list", "--file", weft.folder / "nodes.cvs")
    assert said.err == (
        f"weft: error: {weft.folder}/nodes.cvs: does not exist; `weft profile import` and "
        f"`collect` create it; did you mean '{weft.nodes}'?\n"
    )
    (weft.folder / "e8.py").write_text("")
    said = weft.error("--policy", f"{weft.folder}/mine.py:Mine")
    assert said.endswith("mine.py:Mine: no such file or directory"), "e8.py is not near"


def test_columns(weft: Weft) -> None:
    weft.nodes.write_text(weft.nodes.read_text().replace("cpu_milli", "cpu_mili"))
    assert weft.error("--policy", "fgd").endswith(
        "column cpu_milli is missing; is it the column 'cpu_mili'? Need sn, cpu_milli, "
        "memory_mib, gpu, model"
    )


@pytest.mark.parametrize(
    ("misspelt", "meant"), [("gpu_spce", "gpu_spec"), ("deletion_tme", "deletion_time")]
)
def test_a_misspelt_column_that_may_be_missing_is_not_one_of_somebody_else(
    weft: Weft, misspelt: str, meant: str
) -> None:
    header, *rows = weft.pods.read_text().splitlines()
    lines = [f"{header.replace(meant, 'x')},{misspelt}", *(f"{row}," for row in rows)]
    weft.pods.write_text("\n".join(lines))
    said = weft.error("--policy", "fgd")
    assert said.endswith(f"line 1: column {misspelt!r} is unknown; did you mean {meant!r}?")


def test_columns_of_others_are_left_alone(weft: Weft) -> None:
    header, *rows = weft.pods.read_text().splitlines()
    more = "memory_percent,application_name,team"
    weft.pods.write_text("\n".join([f"{header},{more}", *(f"{row},1,2,3" for row in rows)]))
    assert weft.simulate("--policy", "fgd").code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("leese: {}", "unknown field `leese`; did you mean 'lease'?"),
        ("lease: {renewSecond: 3}", "lease: Object contains unknown field `renewSecond`; did you"),
        ("compat: {genius: exat}", "did you mean 'exact'?"),
        (
            "profiles: [{schedulerName: w, policies: [{name: binpak}]}]",
            "profiles[0].policies[0]: policy: 'binpak' is unknown; did you mean 'binpack'?",
        ),
        (
            "profiles: [{schedulerName: my-team, policies: [{name: fgd}]}]\n"
            "extender: {routes: {/weft: my-taem}}",
            "extender.routes[/weft]: policy: 'my-taem' is unknown; did you mean 'my-team'?",
        ),
    ],
)
def test_settings_profiles_and_policies_of_a_configuration(
    weft: Weft, text: str, says: str
) -> None:
    path = weft.folder / "weft.yaml"
    path.write_text(f"apiVersion: weft.dev/v1\nkind: WeftConfiguration\n{text}\n")
    said = weft("config", "check", path)
    assert said.code == 1
    assert says in said.err


@pytest.mark.parametrize(
    ("setting", "near"),
    [
        ("lease.renewSecond", "lease.renewSeconds"),
        ("renewSeconds", "lease.renewSeconds"),
        ("http.adress", "http.address"),
    ],
)
def test_settings_to_explain(weft: Weft, setting: str, near: str) -> None:
    said = weft("config", "explain", setting)
    assert said.err == f"weft: error: setting: {setting!r} is unknown; did you mean {near!r}?\n"


def test_pods_of_a_decisions_file(weft: Weft) -> None:
    path = weft.folder / "d"
    assert weft.simulate("--policy", "fgd", "--decisions", path).code == 0
    known = next(name for name in json.loads(path.read_text().splitlines()[3])["records"])["name"]
    said = weft("explain", "pod", f"default/{known}x", "--decisions", path)
    assert said.err.endswith(f"is not in this file; did you mean 'default/{known}'?\n")
    said = weft("explain", "pod", f"{known}x", "--decisions", path)
    assert said.err.endswith(f"did you mean {known!r}?\n")


NO_SERVER = ("--url", "http://127.0.0.1:1")


def test_contexts_of_a_kubeconfig(weft: Weft) -> None:
    path = weft.folder / "config"
    path.write_text(json.dumps({"contexts": [{"name": "production", "context": {}}]}))
    said = weft("metrics", *NO_SERVER, "--kubeconfig", path, "--context", "prodution")
    assert "there is no 'prodution'; did you mean 'production'?" in said.err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("profile", "measure", "x", "--workload", "resnet-trian"), "resnet-train"),
        (("extender", "config", "--dialects", "elastik"), "elastic"),
    ],
)
def test_other_names(weft: Weft, words: tuple[str, ...], near: str) -> None:
    said = weft(*words)
    assert said.code == 1
    assert f"did you mean {near!r}" in said.err or f"did you mean {near}=" in said.err
