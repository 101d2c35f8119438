"""The nodes that a pod's claims leave are those of a plain reading of kube-scheduler's rules, and
what is chosen there serves each claim with a volume of its own."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from long_form import few_or_many

from weft.core.constraints.storage_answers import served_of, storage_answers
from weft.core.constraints.volumes import ServingVolumes
from weft.core.ledger import Ledger
from weft.model import (
    ChosenVolume,
    FreeVolume,
    MountedVolumes,
    Node,
    NodeStorage,
    PodRequest,
    Requirement,
    Shape,
    StorageCapacity,
    StorageClass,
    StorageRules,
    Term,
    UnboundClaim,
)

NAMES = tuple("abcd")
ZONES, CLASSES, DRIVERS = ("x", "y"), ("fast", "slow"), ("csi", "other")
MODES = ("ReadWriteOnce", "ReadWriteMany")
sizes = st.integers(1, 4)
on_node = st.sampled_from(NAMES).map(lambda name: Requirement("host", "In", (name,)))
in_zone = st.sampled_from(ZONES).map(lambda zone: Requirement("zone", "In", (zone,)))
out_of_zone = st.sampled_from(ZONES).map(lambda zone: Requirement("zone", "NotIn", (zone,)))
requirements = st.one_of(on_node, in_zone, out_of_zone)
terms = st.lists(requirements, max_size=2).map(lambda found: Term(tuple(found)))
some_terms = st.lists(terms, max_size=2).map(tuple)
modes = st.lists(st.sampled_from(MODES), min_size=1, max_size=2, unique=True).map(tuple)
some_labels = st.sampled_from(({}, {"tier": "gold"}))
volumes = st.builds(
    FreeVolume,
    name=st.sampled_from([f"v{number}" for number in range(6)]),
    storage_class=st.sampled_from(CLASSES),
    size_bytes=sizes,
    access_modes=modes,
    volume_mode=st.sampled_from(("Filesystem", "Filesystem", "Block")),
    labels=some_labels,
    terms=st.none() | some_terms,
    reserved=st.sampled_from((False, False, False, True)),
)
claims = st.builds(
    UnboundClaim,
    storage_class=st.sampled_from(CLASSES),
    size_bytes=sizes,
    access_modes=modes,
    volume_mode=st.sampled_from(("Filesystem", "Filesystem", "Filesystem", "Block")),
    selector=st.sampled_from(((), (), (Requirement("tier", "In", ("gold",)),))),
    reserved=st.sampled_from(("", "", "", "v0", "v1")),
    selected_node=st.sampled_from((None, None, None, "a", "gone")),
    driver=st.sampled_from(("", *DRIVERS)),
)
topologies = st.none() | st.lists(requirements, max_size=1).map(tuple)
capacities = st.builds(
    StorageCapacity,
    name=st.sampled_from(("k0", "k1", "k2")),
    storage_class=st.sampled_from(CLASSES),
    size_bytes=st.integers(-1, 4),
    topology=topologies,
)
attached = st.lists(
    st.tuples(st.sampled_from(DRIVERS), st.sampled_from(("h0", "h1", "h2"))), max_size=3
).map(tuple)


@st.composite
def storage_classes(draw: st.DrawFn, name: str) -> StorageClass:
    makes = draw(st.booleans())
    return StorageClass(name, "csi" if makes else "", draw(some_terms), draw(st.booleans()))


@st.composite
def node_storages(draw: st.DrawFn, name: str) -> NodeStorage:
    limits = draw(st.dictionaries(st.sampled_from(DRIVERS), st.integers(0, 4), max_size=2))
    return NodeStorage(name, limits, tuple(dict.fromkeys(draw(attached))))


def serves(volume: FreeVolume, claim: UnboundClaim, node: Node, *, nobody_s: bool) -> bool:
    """As FindMatchingVolume for one volume, on this node."""
    right = (
        volume.storage_class == claim.storage_class
        and volume.size_bytes >= claim.size_bytes
        and volume.volume_mode == claim.volume_mode
    )
    if not right or not reached(volume, node):
        return False
    if volume.name == claim.reserved:
        return True
    plain = not volume.reserved and nobody_s and set(claim.access_modes) <= set(volume.access_modes)
    return plain and all(r.matches(volume.labels) for r in claim.selector)


def reached(volume: FreeVolume, node: Node) -> bool:
    terms = volume.terms
    return terms is None or any(term.matches(node.name, node.labels) for term in terms)


def plainly(
    there: Sequence[FreeVolume],
    classes: dict[str, StorageClass],
    told: Sequence[StorageCapacity],
    wanted: Sequence[UnboundClaim],
    node: Node,
) -> bool:
    """True if the claims can all be served on the node, one after the other."""
    left = list(there)
    for claim in sorted(wanted, key=lambda claim: claim.size_bytes):
        own = [v for v in there if v.name == claim.reserved and v.could_serve(claim)]
        found: list[FreeVolume] = []
        if claim.selected_node is None:
            among = [v for v in left if v in own] if own else left
            found = [v for v in among if serves(v, claim, node, nobody_s=True)]
        if found:
            left.remove(min(found, key=lambda v: (v.size_bytes, v.name)))
            continue
        how = classes.get(claim.storage_class)
        if how is None or not how.provisioner or claim.selected_node not in (None, node.name):
            return False
        if how.topologies and not any(t.matches(node.name, node.labels) for t in how.topologies):
            return False
        if how.counts_capacity and not any(
            each.storage_class == claim.storage_class
            and each.size_bytes >= claim.size_bytes
            and each.topology is not None
            and all(r.matches(node.labels) for r in each.topology)
            for each in told
        ):
            return False
    return True


@settings(max_examples=few_or_many(40, 20_000))
@given(data=st.data())
def test_nodes_that_claims_leave_are_those_of_a_plain_reading(data: st.DataObject) -> None:
    nodes = [
        Node(name, labels={"host": name, "zone": data.draw(st.sampled_from(ZONES))})
        for name in NAMES
    ]
    there = data.draw(st.lists(volumes, max_size=6, unique_by=lambda volume: volume.name))
    classes = {name: data.draw(storage_classes(name)) for name in CLASSES}
    told = data.draw(st.lists(capacities, max_size=3, unique_by=lambda each: each.name))
    wanted = data.draw(st.lists(claims, min_size=1, max_size=3))
    state = ServingVolumes()
    state.take(there, classes.values(), told)
    table = Ledger(nodes).table
    served = served_of(state, table, wanted)
    names = tuple(f"c{index}" for index in range(len(wanted)))
    for row, node in enumerate(table.nodes):
        fits = all(
            each.by_volume[row] or (each.by_making[row] and each.enough[row]) for each in served
        )
        assert fits == plainly(there, classes, told, wanted, node), node.name
        if fits:
            chosen = state.choose(StorageRules(tuple(wanted)), names, node)
            given_names = [each.volume for each in chosen if each.volume]
            assert len(given_names) == len(set(given_names))
            for each, claim, how in zip(chosen, wanted, served, strict=True):
                assert bool(each.volume) == bool(how.by_volume[row])
                if each.volume:
                    assert serves(state.free[each.volume], claim, node, nobody_s=True)


@settings(max_examples=few_or_many(40, 20_000))
@given(data=st.data())
def test_limits_count_each_volume_of_a_node_once(data: st.DataObject) -> None:
    nodes, state = [Node(name) for name in NAMES], ServingVolumes()
    storages = {name: data.draw(node_storages(name)) for name in NAMES}
    there: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {}
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from("pqrs"), st.sampled_from(NAMES), attached, st.booleans()),
            max_size=10,
        )
    )
    for name, node, uses, comes in steps:
        if name in there:
            state.remove(name)
            del there[name]
        elif comes:
            used = tuple(dict.fromkeys(uses))
            there[name] = node, used
            state.put(name, node, MountedVolumes(used))
        if data.draw(st.booleans()):
            again = data.draw(node_storages(node))
            storages[node] = again
            state.take(nodes=[again])
    state.take(nodes=storages.values())
    new = tuple(dict.fromkeys(data.draw(attached)))
    pod = PodRequest("u", "n", Shape(), claims=())
    table = Ledger(nodes).table
    refused = [False] * len(nodes)
    for answer in storage_answers(state, table, StorageRules(mounts=MountedVolumes(new)), pod):
        refused = [a or bool(b) for a, b in zip(refused, answer.refuses(), strict=True)]
    for row, node in enumerate(table.nodes):
        by_pods = {each for on, uses in there.values() if on == node.name for each in uses}
        all_there = by_pods | set(storages[node.name].attached)
        too_many = False
        for driver, limit in storages[node.name].limits.items():
            more = [each for each in new if each[0] == driver and each not in by_pods]
            has = sum(each[0] == driver for each in all_there)
            too_many |= bool(more) and has + len(more) > limit
        assert refused[row] == too_many, node.name


def test_what_was_chosen_is_nobody_else_s_until_it_is_given_up() -> None:
    state = ServingVolumes()
    state.take([FreeVolume("disk", "fast", 2)], [StorageClass("fast")])
    claim = UnboundClaim("fast", 1)
    rules = StorageRules((claim,))
    chosen = state.choose(rules, ("data",), Node("a"))
    assert chosen == (ChosenVolume("data", "fast", "disk"),)
    state.take_moved()
    state.assume("u1", "ml", "a", chosen)
    state.assume("u2", "ml", "a", chosen)
    assert state.candidates(claim) == []
    same = state.as_assumed(rules, "ml", ("data",))
    assert same.claims[0].reserved == "disk"
    state.release("u1")
    assert state.candidates(claim) == [], "another pod has the same claim"
    with state.trial():
        state.release("u2")
        assert state.candidates(claim) != []
    assert state.candidates(claim) == []
    assert not state.take_moved() - {("class", "fast")}
    state.release("u2")
    assert state.candidates(claim) == [state.free["disk"]]
    assert state.take_moved() == {("class", "fast")}
