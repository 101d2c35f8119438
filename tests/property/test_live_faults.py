"""The whole live scheduler through random faults and crashes, against the fake API server.

It decides by what ships: each profile of `weft config defaults`, `auto`, and every policy.
`make test` plays a schedule of each profile, `auto` and a sixth of the policies (the engine's own
walks, `test_engine_world.py`, play them all), `make test-faults` some ten thousand, and says how
often each fault point was hit (build/faults.txt). Leaders are stopped, and others lead meanwhile;
pods end others of lower priority; two stories in five have gangs.
"""

import json
import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from drawn_rules import KINDS as KINDS_OF_RULES
from fault_cases import KINDS, Block, Played, blocks, cases, play
from faulty_world import NAMESPACE, World
from live_asks import CARD_MIB, CARD_MILLI, limits
from live_faults import BINDING_FAULTS
from live_instance import POINTS
from live_line import kept_by
from live_story import schedule
from long_form import few_or_many
from ways import CHOSEN, DEFAULT, FIRST, SHIPPED, WAYS, seeds

from fakes.api_http import Request
from fakes.api_memory import MemoryConnection
from fakes.api_time import run
from weft.cluster.config.form import Configuration

AT_LEAST = 20
SHORT = 5000  # the first seed of the short form
BOTH_KINDS = ("profile weft", "auto")
SHIPPED_POLICIES = {use.name for profile in Configuration().profiles for use in profile.policies}

FAULT_POINTS = (
    *(f"crash {point}" for point in POINTS),
    "crash in the drain",
    "killed",
    "terminated",
    *BINDING_FAULTS,
    "handed over to one behind",
    "stopped for a while",
    "stopped beyond its lease",
    "slip",
    "lease out of reach",
    "leadership lost",
    "lease: lease deleted",
    "wall clock jumped",
    "watches cut",
    "watch silent",
    "compaction",
    "API server restarted",
    "node deleted",
    "node back",
    "node joins",
    "node leaves",
    "node gains a GPU",
    "node loses a GPU",
    "pod made again",
    "pod edited at once",
    "label changed",
    "foreign pod",
    "pod bound by another",
    "pod ungated",
    "pod deletion asked",
    "deleted after a restart",
    "gang comes",
    "gang deleted",
    "PodGroup deleted",
    "PodGroup deleted while its pods are bound",
    "controllers look",
    "evicted of a gang",
    "place kept",
    "ended for another",
    "crash while a place is kept",
    "line: kept",
    "line: started",
    "line: time",
    "line: nowhere",
    "asked why",
    "metrics read",
    "kube-scheduler gave up waiting",
    "prices made",
    "scores made ahead",
    "typical pods learnt",
    "minutes without an event",
    *(f"pod with {kind}" for kind in (*KINDS_OF_RULES, "claim")),
    "pod resized",
    "probes refused",
    "kept waiting by a rule",
)
REQUESTS = (
    "lease",
    "list",
    "watch",
    "read-back",
    "fence",
    "end",
    "victim's mark",
    "nomination",
)  # whatever goes wrong with them


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Nothing is logged: a broken API server has much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def with_requests(hits: Counter[str]) -> dict[str, int]:
    return {name: hits[name] for name in FAULT_POINTS} | {
        f"{kind}: any": sum(n for name, n in hits.items() if name.startswith(f"{kind}: "))
        for kind in REQUESTS
    }


def short(way: str) -> int:
    """How many schedules of it the short form plays."""
    return few_or_many(1, 6 if WAYS[way] in SHIPPED else 2)


def is_played(way: str, kind: str) -> bool:
    """Tells whether the schedules of this kind are played. The short form plays one kind of most
    ways, a policy that is a profile's own as that profile, and of the others each sixth."""
    if CHOSEN or few_or_many(0, 1) or way in BOTH_KINDS:
        return True
    at = list(WAYS).index(way)
    is_chosen = WAYS[way] in SHIPPED or (way not in SHIPPED_POLICIES and at % 6 == 0)
    return is_chosen and kind == KINDS[at % 2]


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        pytest.param(way, kind, id=f"{way}-{kind}" if kind else way)
        for way in WAYS
        for kind in KINDS
        if is_played(way, kind)
    ],
)
def test_whatever_goes_wrong_the_process_lives_on(way: str, kind: str) -> None:
    """And nothing is given away twice, nobody is forgotten, and what slips through is settled."""
    first = FIRST if CHOSEN else SHORT + list(WAYS).index(way)
    played = play(Block(way, kind, first, cases(way, kind) if CHOSEN else short(way)))
    assert not played.failed, "\n".join(played.failed)
    assert played.hits["bound"]


@pytest.mark.parametrize("way", BOTH_KINDS)
def test_mistakes_beside_deciding_end_no_process(way: str) -> None:
    """Prices, scores ahead, learning and gauges break off in a third of all tries; all that must
    hold does."""
    hits: Counter[str] = Counter()
    for seed in seeds(few_or_many(1, 40), SHORT):
        hits += schedule(seed, WAYS[way], mistakes=True)
    assert hits["mistakes"]


def test_places_are_kept_in_every_second_story() -> None:
    """By the times that ship in the others."""
    hits: Counter[str] = Counter()
    for seed in seeds(few_or_many(1, 40), SHORT + 1):
        assert kept_by(seed).after_ns > 0
        hits += schedule(seed, DEFAULT)
    assert CHOSEN or hits["line: kept"]


@pytest.mark.parametrize("seed", [82010, 82025])
def test_nothing_is_kept_for_a_gang_that_has_started(seed: int) -> None:
    """In these stories it takes a place that is kept for less important pods on a node of its own:
    what was kept for the gang itself was held again."""
    assert schedule(seed, WAYS["auto"])["place kept"]


def test_a_seed_is_one_story() -> None:
    assert schedule(4, slips=True) == schedule(4, slips=True)


def bind(world: World, sender: str, name: str) -> None:
    """A binding of a pod that has a whole GPU comes in."""
    spec = limits({"weft.dev/gpu-count": 1})
    meta = {"name": name, "namespace": NAMESPACE}
    uid = world.server.add("pods", {"metadata": meta, "spec": spec})["metadata"]["uid"]
    placed = {"pod": uid, "node": "n", "shares": [[0, 0, CARD_MIB, CARD_MILLI, ""]]}
    marks = {"weft.dev/placement": json.dumps(placed)}
    body = {"metadata": {**meta, "annotations": marks}, "target": {"name": "n"}}
    path, agent = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/binding", {"user-agent": sender}
    world.server.take(
        Request("POST", path, {}, agent, json.dumps(body).encode()), MemoryConnection()
    )


@pytest.mark.parametrize("stopped", [True, False])
def test_a_binding_is_late_also_where_its_senders_successor_has_ended_already(
    stopped: bool,
) -> None:
    async def played() -> World:
        world = World(1, DEFAULT, slips=stopped)
        world.calm = True
        world.server.add("leases", {"metadata": {"name": "weft"}, "spec": {}}, "kube-system")
        for holder in ("first", "second", ""):
            held = {"spec": {"holderIdentity": holder}}
            world.server.update("leases", "weft", held, "kube-system")
            if holder == "second":
                bind(world, holder, "a")
        bind(world, "first", "b")
        return world

    world = run(played())
    assert world.hits["bound"] == 2
    assert world.hits["slip"] == stopped
    assert any("second held the lease last" in text for text in world.violations) != stopped
    assert not (stopped and world.violations)


@pytest.mark.faults
@pytest.mark.parametrize("way", ["profile weft", "auto", "all of config defaults"])
def test_twelve_hours(way: str) -> None:
    hits = schedule(FIRST, WAYS[way], hours=12)
    assert hits["prices made"] > 1_000
    assert hits["node joins"] > 10


@pytest.mark.faults
def test_ten_thousand_schedules_hit_every_fault_point() -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=spawn, initializer=logging.disable, initargs=(logging.CRITICAL,)
    ) as pool:
        found = list(pool.map(play, blocks()))
    points = with_requests(sum((played.hits for played in found), Counter()))
    table = [*by_way(found), "", *(f"{count:7} {name}" for name, count in points.items())]
    path = Path("build/faults.txt")
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(table) + "\n")
    print("\n" + "\n".join(table))  # noqa: T201 - the figures are the result
    failed = [text for played in found for text in played.failed]
    assert not failed, f"{len(failed)} schedules failed:\n" + "\n\n".join(failed)
    if not CHOSEN:
        assert {name: count for name, count in points.items() if count < AT_LEAST} == {}


def by_way(found: list[Played]) -> list[str]:
    """A line for each way: its schedules, and what happened in them."""
    lines = []
    for way in WAYS:
        mine = [played for played in found if played.block.way == way]
        hits = sum((played.hits for played in mine), Counter[str]())
        failed = sum(len(played.failed) for played in mine)
        lines.append(
            f"{way}: {sum(played.block.count for played in mine)} schedules, {failed} failed; "
            f"{hits['bound']} pods bound, {hits['prices made']} price lists, "
            f"{hits['slip']} bindings by a stopped leader, {hits['evicted']} pods evicted for it"
        )
    return lines
