"""Co-scheML's published table and the decisions that follow from it, in engine and simulator.

Costs and exclusions are of its 12 × 12 table; the matching of two waiting and two running pods was
worked out independently.
"""

import json
import os
from itertools import combinations_with_replacement
from pathlib import Path

import msgspec
import pytest

from weft.core.engine import (
    Bind,
    Engine,
    PodAdded,
    PodGone,
    PodSeenBound,
    PolicyInput,
    Tick,
    Unschedulable,
)
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.core.policies.coscheml import FORBIDDEN, CoschemlPolicy
from weft.interference.public_datasets import static_table
from weft.interference.table import from_static
from weft.lab.simulate.sharing import pairs
from weft.lab.simulate.sharing.job import SECOND_NS, Job, JobPhase
from weft.lab.simulate.sharing.run import SharedScenario, SharingRun
from weft.model.interference_table import INTERFERENCE, MYSTIC, InterferenceTable, to_input
from weft.testing import node, placement, pod

DATA = Path(os.environ.get("WEFT_DATA", "../shared/data")) / "coscheml"
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.exists(), reason=f"no Co-scheML tables in {DATA}"),
]
MIB = 300


def told():
    table = (DATA / "interference.json").read_bytes()
    return to_input(from_static(1, static_table(table, "interference.json")))


def mystic():
    return json.loads((DATA / "mystic_interference.json").read_text())


def knows(**options) -> CoschemlPolicy:
    policy = built_in().create("coscheml", **options)
    policy.take_input(INTERFERENCE, msgspec.convert(told(), InterferenceTable))
    assert isinstance(policy, CoschemlPolicy)
    return policy


def cluster(running: dict[str, str], *, gpus: int = 1, **options) -> Engine:
    """One node for each running application ("": an empty one), by name."""
    nodes = [node(name, gpus=gpus) for name in running]
    engine = Engine([Profile("weft", [built_in().create("coscheml", **options)])], nodes)
    engine.handle(PolicyInput(INTERFERENCE, told()), 0)
    engine.handle(PolicyInput(MYSTIC, mystic()), 0)
    for name, application in running.items():
        if application:
            place = placement(f"on-{name}", name, 0, memory_mib=MIB)
            place = msgspec.structs.replace(place, application=application)
            engine.handle(PodSeenBound(place), 0)
    return engine


def arrive(engine: Engine, application: str, *, beside=()) -> str:
    """The only node that the pod may have when these wait too; "" for none."""
    profile = next(iter(engine.profiles.values()))
    asking = pod("new", memory_mib=MIB, application=application)
    others = [pod(f"w-{name}", memory_mib=MIB, application=name) for name in beside]
    known = engine.assess(profile, asking, others)
    fits = [engine.ledger.table.nodes[row].name for row in (known.codes == 0).nonzero()[0]]
    assert len(fits) <= 1
    return fits[0] if fits else ""


def test_the_cheapest_and_the_dearest_pairs():
    policy = knows()
    names = policy.view.source.classes
    costs = {pair: policy.cost(*pair) for pair in combinations_with_replacement(names, 2)}
    real = sorted((cost, pair) for pair, cost in costs.items() if cost < FORBIDDEN)
    assert [(set(pair), round(cost, 4)) for cost, pair in real[:3]] == [
        ({"regression"}, 2.0174),
        ({"classification", "regression"}, 2.0356),
        ({"LAMMPS", "regression"}, 2.0385),
    ]
    assert (set(real[-1][1]), round(real[-1][0], 4)) == ({"Googlenet", "vgg11"}, 4.0586)
    assert {frozenset(pair) for pair, cost in costs.items() if cost == FORBIDDEN} == {
        frozenset({"LAMMPS"}),
        frozenset({"vgg16"}),
        frozenset({"vgg16", "vgg11"}),
        frozenset({"QMCPACK", "vgg16"}),
        frozenset({"QMCPACK", "vgg11"}),
    }


def test_costs_of_the_matching():
    policy = knows()
    assert round(policy.cost("classification", "LAMMPS"), 4) == 2.0727
    assert round(policy.cost("CNN", "QMCPACK"), 4) == 3.8969


@pytest.mark.parametrize("compat", ["sane", "exact"])
def test_two_wait_and_two_run(compat):
    engine = cluster({"a": "LAMMPS", "b": "QMCPACK"}, compat=compat)
    assert arrive(engine, "classification", beside=["CNN"]) == "a"
    assert arrive(engine, "CNN", beside=["classification"]) == "b"
    assert arrive(engine, "CNN") == "a", "alone it takes its own cheapest"


@pytest.mark.parametrize("compat", ["sane", "exact"])
def test_the_engine_binds_what_was_matched(compat):
    """Both wait first, for there is no node; then the running pods' nodes appear."""
    engine = cluster({"a": "LAMMPS", "b": "QMCPACK"}, compat=compat)
    full = [placement(f"more-{n}", n, 0, memory_mib=MIB) for n in "ab"]
    for one in full:
        engine.handle(PodSeenBound(one), 1)
    for name in ("classification", "CNN"):
        commands = engine.handle(PodAdded(pod(name, memory_mib=MIB, application=name)), 2)
        assert any(isinstance(command, Unschedulable) for command in commands)
    ns = 60 * 10**9
    found = engine.handle(PodGone("more-a"), ns) + engine.handle(PodGone("more-b"), ns)
    found += engine.handle(Tick(), 3 * ns)
    places = {c.pod.uid: c.placement.node for c in found if isinstance(c, Bind)}
    assert places == {"classification": "a", "CNN": "b"}


def test_an_idle_gpu_comes_first_and_the_original_takes_the_last():
    running = {"a": "LAMMPS", "b": "", "c": ""}
    assert arrive(cluster(running), "CNN") == "b"
    assert arrive(cluster(running, compat="exact"), "CNN") == "c"


def test_at_most_two_pods_share_a_gpu():
    engine = cluster({"a": "LAMMPS"})
    engine.handle(PodSeenBound(placement("second", "a", 0, memory_mib=MIB)), 1)
    assert arrive(engine, "regression") == ""


def test_forbidden_pairs_wait():
    assert arrive(cluster({"a": "vgg16"}), "vgg16") == ""
    assert arrive(cluster({"a": "vgg16"}, compat="exact"), "vgg16") == ""


def test_what_nobody_knows():
    """The original: free as a waiting pod, a crash as a running one. Ours: as bad as any known."""
    running = {"a": "LAMMPS", "b": "regression"}
    exact = cluster(running, compat="exact")
    assert arrive(exact, "resnet", beside=["CNN"]) != ""
    assert arrive(cluster({"a": "LAMMPS", "b": "resnet"}, compat="exact"), "CNN") == ""
    assert arrive(cluster({"a": "LAMMPS", "b": "resnet"}), "CNN") == "a"


def test_the_originals_hosts():
    """GROMACS has an empty node only where it is called dccgpu; the flag is set all the same."""
    running = {"a": "", "b": "LAMMPS"}
    assert arrive(cluster(running, compat="exact"), "GROMACS") == ""
    assert arrive(cluster({"dccgpu": "", "b": "LAMMPS"}, compat="exact"), "GROMACS") == "dccgpu"
    assert arrive(cluster(running), "GROMACS") == "a"


def test_the_original_adds_up_what_its_table_says():
    """Only −1 both ways forbids, one alone is a number; what the table leaves out counts 0."""
    odd = {"a": {"a": 1.5, "b": -1}, "b": {"a": 1.2}, "c": {"c": -1}}
    table = to_input(from_static(1, static_table(json.dumps(odd), "odd.json")))
    exact, sane = (built_in().create("coscheml", compat=one) for one in ("exact", "sane"))
    for policy in (exact, sane):
        policy.take_input(INTERFERENCE, msgspec.convert(table, InterferenceTable))
    assert [round(exact.cost(*pair), 4) for pair in ("aa", "ab", "bb", "ac")] == [3.0, 0.2, 0, 0]
    assert exact.cost("c", "c") == FORBIDDEN
    assert sane.cost("a", "b") == FORBIDDEN
    assert sane.cost("b", "b") > 2.0


def test_the_originals_mystic_knows_no_hosts_and_no_table_of_slowdowns():
    exact = {"pairing": "mystic", "compat": "exact"}
    assert arrive(cluster({"a": "", "b": "LAMMPS"}, **exact), "GROMACS") == "a"
    assert arrive(cluster({"a": "vgg16"}, **exact), "vgg16") == "a"
    alone = built_in().create("coscheml", **exact)
    alone.take_input(MYSTIC, mystic())
    assert alone.cost("CNN", "LAMMPS") == -mystic()["CNN"]["LAMMPS"]
    engine = Engine([Profile("weft", [alone])], [node("a", gpus=1)])
    engine.handle(PolicyInput(MYSTIC, mystic()), 0)
    runs = msgspec.structs.replace(placement("on", "a", 0, memory_mib=MIB), application="LAMMPS")
    engine.handle(PodSeenBound(runs), 0)
    assert arrive(engine, "CNN") == "a"


def test_branches():
    running = {"a": "HOOMD", "b": "regression", "c": "LAMMPS"}
    assert arrive(cluster(running, pairing="fifo"), "CNN") == "a"
    assert arrive(cluster(running, pairing="gpu-util"), "CNN") == "b"  # 92.02 + 11.91
    far = max(running.items(), key=lambda one: mystic()["CNN"][one[1]])[0]
    assert arrive(cluster(running, pairing="mystic"), "CNN") == far


def test_several_gpus_on_a_node():
    """Ours counts each GPU for itself: one is empty beside the one in use."""
    engine = cluster({"a": "LAMMPS"}, gpus=2)
    command = engine.handle(PodAdded(pod("new", memory_mib=MIB, application="CNN")), 1)[0]
    assert isinstance(command, Bind)
    assert command.placement.shares[0].gpu == 1


class Seen(SharingRun):
    """A simulation that remembers where jobs went first."""

    def __init__(self, scenario: SharedScenario, policy: CoschemlPolicy) -> None:
        super().__init__(scenario, policy)
        self.places: dict[str, str] = {}

    def _bind(self, command: Bind) -> None:
        self.places.setdefault(command.pod.uid, command.placement.node)
        super()._bind(command)


def test_in_the_simulator():
    """Two long jobs take a GPU each; of the two that come then the first is left LAMMPS."""
    table = pairs.coscheml(DATA / "interference.json")
    told_all = [("LAMMPS", 0), ("QMCPACK", 1), ("classification", 2), ("CNN", 3)]
    work = {"LAMMPS": 5_000, "QMCPACK": 5_000, "classification": 100, "CNN": 100}
    jobs = tuple(
        Job(name, name, at * SECOND_NS, MIB, (JobPhase(work[name] * SECOND_NS, MIB),))
        for name, at in told_all
    )
    for compat in ("sane", "exact"):
        nodes = (node("ubuntu", gpus=1), node("x", gpus=1))  # the original keeps QMCPACK to some
        scenario = SharedScenario(nodes, jobs, table.truth(), inputs={INTERFERENCE: told()})
        run = Seen(scenario, built_in().create("coscheml", compat=compat))
        outcome = run.go()
        assert outcome.unfinished == 0
        where = run.places
        assert where["LAMMPS"] != where["QMCPACK"]
        assert where["classification"] == where["LAMMPS"]
        assert where["CNN"] == where["QMCPACK"]
