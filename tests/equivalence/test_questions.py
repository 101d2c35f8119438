"""Questions answered as arrays are those answered one node at a time."""

from random import Random

import asking_slowly
from hypothesis import given
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.engine import Engine, NodesChanged, PodAdded, PodSeenBound, questions
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.testing import random_nodes, random_shape
from weft.testing.builders import node, placement, pod

NAMES = st.lists(
    st.sampled_from(["a", "b", "c", "d", "plain", "small", "who", "nobody"]), unique=True
)
HELD = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 1), st.integers(1, 900)))


@given(
    NAMES, HELD, st.integers(1, 1100), st.sampled_from(["best-fit", "gpushare", "elastic-binpack"])
)
def test_as_the_plain_ones(
    names: list[str], held: list[tuple[str, int, int]], memory: int, policy: str
) -> None:
    nodes = [node(name, gpus=2, memory_mib=1000) for name in "abcd"]
    nodes += [node("plain"), node("small", gpus=1, memory_mib=10)]
    profile = Profile("p", [built_in().create(policy)])
    engine = Engine([profile], nodes)
    for number, (where, gpu, mib) in enumerate(held):
        if engine.ledger.fits(there := placement(f"u{number}", where, gpu, memory_mib=mib)):
            engine.handle(PodSeenBound(there), number)
    asked = pod("asked", memory_mib=memory)
    lookup = questions.RowLookup()
    want = asking_slowly.which_fit(engine, profile, asked, names)
    assert questions.which_fit(engine, profile, asked, names) == want
    assert questions.which_fit(engine, profile, asked, names, lookup) == want
    slowly = asking_slowly.scores(engine, profile, asked, names)
    assert questions.scores(engine, profile, asked, names) == slowly
    assert questions.scores(engine, profile, asked, names, lookup) == slowly
    fits = questions.which_fit(engine, profile, asked, names, lookup).fits
    assert lookup(engine.ledger.table, fits).tolist() == [
        engine.ledger.table.row_of[name] for name in fits
    ]


def test_every_node_is_told_its_own_reason_in_any_cluster() -> None:
    """As if it were the only one asked about: several claims, rules, MIG, all of it."""
    told = 0
    for seed in range(few_or_many(30, 150)):
        random = Random(seed)
        nodes = random_nodes(random, 6)
        profile = Profile("p", [built_in().create("best-fit")])
        engine = Engine([profile], nodes)
        for number in range(8):
            asks = random_shape(random, nodes)
            engine.handle(PodAdded(pod(f"held-{number}", asks=asks, scheduler_name="p")), number)
        names = [one.name for one in nodes]
        random.shuffle(names)
        asked = pod("asked", asks=random_shape(random, nodes))
        want = asking_slowly.which_fit(engine, profile, asked, names)
        assert questions.which_fit(engine, profile, asked, names) == want
        told += len({*want.failed.values(), *want.unresolvable.values()}) > 1
    assert told > few_or_many(10, 50)


def test_without_any_node() -> None:
    profile = Profile("p", [built_in().create("best-fit")])
    engine = Engine([profile])
    asked = pod("asked", memory_mib=1)
    assert questions.which_fit(engine, profile, asked, ["a"]).unknown == ["a"]
    assert questions.scores(engine, profile, asked, ["a"]) == [0]


def test_a_remembered_list_is_looked_up_again_when_nodes_changed() -> None:
    profile = Profile("p", [built_in().create("best-fit")])
    engine, lookup, names = (
        Engine([profile], [node("b", gpus=1)]),
        questions.RowLookup(),
        ["b", "a"],
    )
    asked = pod("asked", memory_mib=1)
    assert questions.which_fit(engine, profile, asked, names, lookup).fits == ["b"]
    engine.handle(NodesChanged((node("a", gpus=1),)), 1)
    assert questions.which_fit(engine, profile, asked, names, lookup).fits == ["b", "a"]
    engine.handle(NodesChanged((), ("b",)), 2)
    assert questions.which_fit(engine, profile, asked, names, lookup).fits == ["a"]
