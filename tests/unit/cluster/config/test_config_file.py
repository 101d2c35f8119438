"""The configuration file: what it says, and what is said about a wrong one."""

from pathlib import Path
from typing import Annotated, get_args, get_origin

import msgspec
import pytest

from weft.cluster.config.form import CompatSettings, Configuration
from weft.cluster.config.made_profiles import maker, profiles
from weft.cluster.config.read import decode, read
from weft.cluster.config.show import REASONS, as_yaml, explain
from weft.core.policies.catalog import built_in
from weft.model import BadInputError

HEAD = "apiVersion: weft.dev/v1\nkind: WeftConfiguration\n"
DOCS = Path(__file__).resolve().parents[4] / "docs" / "reference" / "configuration.md"


def config(text: str = "") -> Configuration:
    return decode((HEAD + text).encode(), "weft.yaml")


def test_the_least_file_is_all_defaults() -> None:
    assert config() == Configuration()


def test_the_defaults_printed_are_the_defaults_read() -> None:
    assert decode(as_yaml(Configuration()).encode(), "printed") == Configuration()


def test_defaults_are_printed_to_be_read() -> None:
    """Each setting in a line of its own below its reason, lists too."""
    lines = as_yaml(Configuration()).splitlines()
    assert max(map(len, lines)) <= 100
    at = lines.index("profiles:")
    assert lines[at - 1].startswith("# ")
    shown = [line for line in lines[at + 1 :] if "#" not in line]
    assert shown[:6] == [
        '- schedulerName: "weft"',
        "  policies:",
        '  - name: "least-stranding"',
        "    weight: 1",
        "    options: {}",
        '  via: "scheduler"',
    ]
    words = " ".join(" ".join(line.strip(" #") for line in lines).split())
    for path, reason in REASONS.items():
        assert "[]" in path or words.count(" ".join(reason.split())) >= 1, path


def test_every_system_has_its_own_switch_for_its_own_policies() -> None:
    registry = built_in()
    able = {one.name for one in registry.describe() if "compat" in one.options}
    system_of = {name: registry.compat_system(name) for name in registry.names()}
    assert able == {name for name, system in system_of.items() if system}
    assert {*CompatSettings.__struct_fields__, ""} == set(system_of.values())
    for system in CompatSettings.__struct_fields__:
        create = maker(config(f"compat: {{{system}: exact}}"), registry)
        exact = {name for name in able if create(name).made_with == {"compat": "exact"}}
        assert exact == {name for name in able if system_of[name] == system}
        assert create("fgd").made_with == {}
    assert maker(config(), registry)("elastic-binpack").made_with == {}


def test_a_policys_own_option_counts_more_than_its_systems_switch() -> None:
    text = (
        "compat: {alnair: exact}\n"
        "profiles:\n"
        "- {schedulerName: a, policies: [{name: alnair-cost-saving}]}\n"
        "- {schedulerName: b, policies: [{name: alnair-cost-saving, options: {compat: sane}}]}\n"
    )
    made = profiles(config(text), built_in())
    assert [one.lead.made_with["compat"] for one in made] == ["exact", "sane"]


def test_default_profiles_can_be_made() -> None:
    made = profiles(Configuration(), built_in())
    assert [profile.name for profile in made] == [
        "weft",
        "alnair-cost-saving",
        "alnair-high-performance",
        "genius-scheduler",
        "custom-scheduler",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("colour: red", "weft.yaml: Object contains unknown field `colour`"),
        ("lease: {renew: 3}", "weft.yaml: lease: Object contains unknown field `renew`"),
        ("client: {qps: fast}", "weft.yaml: client.qps: 'fast': Expected `float`, got `str`"),
        ("client: {qps: 0}", "weft.yaml: client.qps: 0.0 must be more than 0"),
        ("lease: {durationSeconds: 60}", "weft.yaml: lease.durationSeconds: 60 is more than 10"),
        ("http: {port: 99999}", "weft.yaml: http.port: 99999 is not a port"),
        ("profiles: []", "weft.yaml: profiles: is empty"),
        (
            "profiles: [{schedulerName: a, policies: []}]",
            "weft.yaml: profiles[0].policies: is empty",
        ),
        (
            "profiles: [{schedulerName: a, policies: [{name: fgd, weight: -1}]}]",
            "weft.yaml: profiles[0].policies[0].weight: -1 is negative",
        ),
        ("inventory: [{count: 8, memoryMiB: 0}]", "weft.yaml: inventory[0].memoryMiB: 0 must be"),
        (
            "interference: {progressMetric: 'up{job=\"a\"}'}",
            "weft.yaml: interference.progressMetric: 'up{job=\"a\"}' is not a metric name; write",
        ),
        (
            "interference: {latencyMetric: weft_progress_total}",
            "weft.yaml: interference.latencyMetric: is progressMetric too",
        ),
        (
            "interference: {observed: A_b}",
            "weft.yaml: interference.observed: 'A_b' is not a valid ConfigMap name",
        ),
        (
            "interference: {observed: weft-lessons}",
            "weft.yaml: interference.observed: is also oomHistory.name; use another name",
        ),
        ("compat: exact", "weft.yaml: compat: 'exact': Expected `object`, got `str`"),
        (
            "compat: {gpushare: exact}",
            "weft.yaml: compat: Object contains unknown field `gpushare`",
        ),
        (
            "compat: {elastic: lax}",
            "weft.yaml: compat.elastic: Invalid enum value 'lax'; write one of 'exact', 'sane'",
        ),
        ("a: [", "weft.yaml: line 4: is not YAML"),
    ],
)
def test_a_wrong_file_is_told_by_field(text: str, told: str) -> None:
    with pytest.raises(BadInputError) as error:
        config(text)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("text", ["", "kind: Pod", "apiVersion: weft.dev/v2\nkind: x"])
def test_another_kind_of_file_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        decode(text.encode(), "weft.yaml")


def test_two_profiles_of_one_name_are_refused() -> None:
    one = "{schedulerName: a, policies: [{name: fgd}]}"
    with pytest.raises(BadInputError, match=r"profiles\[1\].schedulerName"):
        config(f"profiles: [{one}, {one}]")


def test_an_unknown_policy_names_its_place() -> None:
    found = config("profiles: [{schedulerName: a, policies: [{name: best}]}]")
    with pytest.raises(BadInputError, match=r"yaml: profiles\[0\].policies\[0\].*'best-fit'"):
        profiles(found, built_in(), "weft.yaml")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="cannot be read"):
        read(tmp_path / "none.yaml")


def paths(type_: type, prefix: str = "") -> list[str]:
    """Every setting there is, by its path."""
    found = []
    for field in msgspec.structs.fields(type_):
        path = prefix + field.encode_name
        inner, many = field.type, False
        if get_origin(inner) is Annotated:
            inner = get_args(inner)[0]
        if getattr(inner, "__origin__", None) is tuple:
            inner, many = inner.__args__[0], True
        is_form = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
        if many or not is_form:
            found.append(path)
        if is_form:
            found += paths(inner, f"{path}[]." if many else f"{path}.")
    return found


def test_every_setting_has_a_reason_and_stands_in_the_docs() -> None:
    assert sorted(paths(Configuration)) == sorted(REASONS)
    text = DOCS.read_text()
    assert [path for path in REASONS if f"`{path}`" not in text] == []


def test_explain_shows_what_is_below() -> None:
    assert next(path for path, _, _ in explain("lease")) == "lease.enabled"
    assert len(explain("lease.name")) == 1
    with pytest.raises(BadInputError):
        explain("leases")


def test_a_policys_options_are_told_by_path_value_and_what_is_expected() -> None:
    second = "{name: ferikoglou-safe, options: {round_s: x}}"
    text = f"profiles: [{{schedulerName: a, policies: [{{name: fgd}}, {second}]}}]"
    with pytest.raises(BadInputError) as error:
        profiles(config(text), built_in(), "weft.yaml")
    assert str(error.value) == (
        "weft.yaml: profiles[0].policies[1]: policy ferikoglou-safe, option round_s: "
        "'x' is not a valid value; write a whole number"
    )
