"""The worlds prove what ships: none of them leaves out a profile of `weft config defaults` or
of the chart's values, or a policy of the catalogue."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("property", "equivalence", "cluster")]

import fault_cases  # noqa: E402
import test_engine_world as engine  # noqa: E402
import test_harvest_world as harvest  # noqa: E402
import test_nodes_come_and_go as chaos  # noqa: E402
import test_poison_manifests  # noqa: E402
import test_policies_are_safe  # noqa: E402
import ways  # noqa: E402
from ways import SHIPPED_BY, VALUES, WAYS, of_chart, shipped_ways  # noqa: E402

from weft.cluster.config.form import Configuration  # noqa: E402
from weft.cluster.config.made_profiles import profiles as made_profiles  # noqa: E402
from weft.core.framework import Policy, Profile  # noqa: E402
from weft.core.policies.catalog import BUILT_IN, built_in  # noqa: E402
from weft.core.record import PolicyUse  # noqa: E402


class NewPolicy(Policy):
    """One that was just written."""

    name = "just-written"


def by_way(test: object) -> list[Profile]:
    """The profiles of the ways that a test is parametrised with."""
    marks = getattr(test, "pytestmark", [])
    names = next(mark.args[1] for mark in marks if mark.args[:1] == ("way",))
    return [profile for name in names for profile in known(name).made()]


def known(way: str) -> ways.Way:
    return {**WAYS, **harvest.PLAYED}[way]


def by_schedules() -> Iterator[Profile]:
    for block in fault_cases.blocks():
        yield from WAYS[block.way].made()


def by_chaos() -> Iterator[Profile]:
    for name in chaos.PLAYED:
        yield from made_profiles(chaos.CONFIGURATIONS[name], built_in())


WORLDS = {
    "engine": list(by_way(engine.test_whatever_happens_the_engine_agrees_with_the_world)),
    "harvest": list(by_way(harvest.test_whatever_happens_the_rules_of_lending_hold)),
    "live": list(by_schedules()),
    "poison": list(by_way(test_poison_manifests.test_what_is_accepted_is_decided)),
    "limits": list(
        by_way(test_policies_are_safe.test_no_policy_overcommits_beyond_the_declared_limit)
    ),
    "chaos": list(by_chaos()),
}


def uses(profile: Profile) -> tuple[PolicyUse, ...]:
    return tuple(PolicyUse.of(plugin.policy, plugin.weight) for plugin in profile.plugins)


def lacking(
    played: Iterable[Profile],
    shipped_by: dict[str, Configuration] = SHIPPED_BY,
    catalogue: Iterable[type[Policy]] = BUILT_IN,
) -> list[str]:
    """Names what a world that plays these profiles leaves out."""
    found = [uses(profile) for profile in played]
    names = {use.name for policies in found for use in policies}
    left_out = [
        f"profile {profile.name} of {where}"
        for where, config in shipped_by.items()
        for profile in made_profiles(config, built_in())
        if uses(profile) not in found
    ]
    return left_out + [f"policy {one.name}" for one in catalogue if one.name not in names]


@pytest.mark.parametrize("world", WORLDS)
def test_no_world_leaves_out_what_ships(world: str) -> None:
    assert lacking(WORLDS[world]) == []


@pytest.mark.parametrize("way", ["profile weft", "auto", "fgd"])
def test_a_way_that_no_world_played_would_be_told(way: str) -> None:
    played = [uses(profile) for profile in WAYS[way].made()]
    others = [profile for profile in WORLDS["engine"] if uses(profile) not in played]
    told = lacking(others)
    assert any(text.endswith(WAYS[way].made()[0].lead.name) for text in told)
    assert (way != "profile weft") or "profile weft of config defaults" in told


NEW = {"schedulerName": "gold", "policies": [{"name": "fgd", "weight": 2}, {"name": "spread"}]}


@pytest.mark.parametrize("values", [{"profiles": [NEW]}, {"configuration": {"profiles": [NEW]}}])
def test_a_new_profile_of_the_chart_would_be_told_and_is_played(values: dict[str, object]) -> None:
    chart = of_chart(yaml.safe_load(VALUES.read_text()) | values)
    shipped = {**SHIPPED_BY, "the chart": chart}
    assert lacking(WORLDS["live"], shipped) == ["profile gold of the chart"]
    played = [profile for way in shipped_ways(shipped) for profile in way.made()]
    assert lacking([*WORLDS["live"], *played], shipped) == []


@pytest.mark.parametrize("world", WORLDS)
def test_a_new_policy_of_the_catalogue_would_be_told(world: str) -> None:
    assert lacking(WORLDS[world], catalogue=(*BUILT_IN, NewPolicy)) == ["policy just-written"]
