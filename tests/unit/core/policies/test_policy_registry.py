"""Policies by name: what comes with Weft, and what plugins bring or fail to bring."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from weft.core.framework import Policy
from weft.core.framework.registry import Registry, register_entry_points
from weft.core.policies.catalog import BUILT_IN, built_in
from weft.core.policies.elastic import ElasticBinpack
from weft.model import BadInputError


class Mine(Policy):
    name = "mine"
    summary = "my own"
    source = "me"
    reads = frozenset({"signals"})

    def __init__(self, limit: int, bias: int = 3) -> None:
        self.limit, self.bias = limit, bias


class Nameless(Policy):
    pass


class Taken(Policy):
    name = "binpack"


@dataclass
class Entry:
    name: str
    found: Any
    value: str = "package.module:Thing"

    def load(self):
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def test_every_built_in_policy_says_what_it_is():
    names = built_in().names()
    assert len(names) == len(BUILT_IN) == 33
    assert list(names) == sorted(names)
    for item in built_in().describe():
        assert item.summary
        assert item.source
        assert isinstance(built_in().create(item.name), Policy)


def test_registries_do_not_share_what_is_added():
    changed = built_in()
    changed.register(Mine)
    assert "mine" in changed.names()
    assert "mine" not in built_in().names()


def test_create_passes_options_on():
    registry = Registry()
    registry.register(Mine)
    mine = registry.create("mine", limit=5)
    assert isinstance(mine, Mine)
    assert (mine.limit, mine.bias) == (5, 3)
    exact = built_in().create("elastic-binpack", compat="exact")
    assert isinstance(exact, ElasticBinpack)
    assert exact.exact


def test_describe_gives_options_as_text():
    registry = built_in()
    registry.register(Mine)
    by_name = {item.name: item for item in registry.describe()}
    assert by_name["mine"].options == {"limit": "required", "bias": "3"}
    assert by_name["mine"].reads == ("signals",)
    assert by_name["elastic-binpack"].options == {"compat": "sane"}
    assert by_name["spread"].options == {}
    assert msgspec.json.encode(registry.describe())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nope", {}, r"policy: 'nope' is unknown; write one of alnair-cost-saving, "),
        (
            "spread",
            {"compat": "exact"},
            r"option 'compat' is unknown: this policy takes no options",
        ),
        ("fgd", {"foo": 3}, r"policy fgd: option 'foo' is unknown: this policy takes no options"),
        ("genius", {"foo": 3}, r"policy genius: option 'foo' is unknown; its options are compat"),
        ("mine", {"limits": 1}, r"policy mine: option 'limits' is unknown; did you mean 'limit'"),
        ("mine", {"bias": 1}, r"policy mine: it needs the option limit"),
    ],
)
def test_what_cannot_be_created_is_named(name, options, message):
    registry = built_in()
    registry.register(Mine)
    with pytest.raises(BadInputError, match=message):
        registry.create(name, **options)


def test_a_name_is_needed_and_belongs_to_one():
    with pytest.raises(BadInputError, match="policy Nameless: it has no name"):
        Registry().register(Nameless)
    with pytest.raises(BadInputError, match=r"taken by weft\.core\.policies\.packing\.Binpack"):
        built_in().register(Taken)


def test_plugins_join_and_broken_ones_are_left_out_with_one_line_each():
    registry = built_in()
    found = [
        Entry("lost", ImportError("No module named 'gone'\n(see above)")),
        Entry("binpack", Taken),
        Entry("thing", lambda: None),
        Entry("other", Mine),
        Entry("mine", Mine, "mine.policies:Mine"),
    ]
    complaints = register_entry_points(registry, found)
    assert set(registry.names()) - set(built_in().names()) == {"mine"}
    assert all("\n" not in line for line in complaints)
    assert complaints == (
        "plugin lost (package.module:Thing) is left out: "
        "ImportError: No module named 'gone' (see above)",
        "plugin binpack (package.module:Thing) is left out: "
        "the name is taken by weft.core.policies.packing.Binpack; set another `name`",
        "plugin thing (package.module:Thing) is left out: "
        "it is not a subclass of weft.core.framework.Policy",
        "plugin other (package.module:Thing) is left out: "
        "its class has the name 'mine'; both names must agree",
    )


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("ferikoglou-safe:round_s=x", "round_s: 'x' is not a valid value; write a whole number"),
        ("ferikoglou-safe:round_s=1.5", "round_s: 1.5 is not a valid value; write a whole number"),
        ("ferikoglou-safe:round_s=true", "round_s: True is not a valid value"),
        ("ferikoglou-safe:round_s=[[[[", "round_s: '[[[[' is not a valid value"),
        ("interference:critical=[1]", "critical: [1] is not a valid value; write a number"),
        ("interference:overlap=1", "overlap: 1 is not a valid value; write true or false"),
        (
            "interference:most=999999999",
            "most: 999999999 is not a valid value; write a whole number <= 1024",
        ),
        ("interference:gain=null", "gain: None is not a valid value; write a number"),
        ("load-aware:bonus=9000000000000000000", "bonus: 9000000000000000000 is not a valid value"),
        ("load-aware:mode=both", "mode: 'both' is unknown; write one of spread, pack"),
        (
            "genius:compat=Exact",
            "compat: 'Exact' is unknown; did you mean 'exact'? Write one of sane, exact",
        ),
        ("fgd:typical=x", "typical: 'x' is not a valid value; write TypicalPods or nothing"),
    ],
)
def test_an_options_value_is_what_the_policy_says(spec, told):
    with pytest.raises(BadInputError) as found:
        built_in().from_spec(spec)
    assert str(found.value).startswith(f"policy {spec.partition(':')[0]}, option {told}")


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_is_finite(value):
    with pytest.raises(BadInputError, match=f"option trend_above: {value} is not a finite number"):
        built_in().create("kube-knots-pp", trend_above=value)


@pytest.mark.parametrize(
    "options", [{"critical": 2}, {"critical": 2.5, "overlap": False}, {"most": 3}]
)
def test_good_values_arrive_as_they_were_written(options):
    """A decisions file has them as they were: nothing is converted."""
    made = built_in().create("interference", **options).made_with
    assert {(key, type(value)) for key, value in made.items()} == {
        (key, type(value)) for key, value in options.items()
    }


def test_a_plugin_that_says_nothing_readable_of_its_options_checks_them_itself():
    class Odd(Policy):
        name = "odd"

        def __init__(self, one, two: "Nowhere" = 2, three: object = 3) -> None:  # noqa: F821
            self.seen = (one, two, three)

    registry = Registry()
    registry.register(Odd)
    assert registry.create("odd", one="a", two="b", three=[]).seen == ("a", "b", [])
