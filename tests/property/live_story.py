"""One schedule: chaos for a while, then quiet, then everything must be in order."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence

import live_nodes
from faulty_world import ANOTHER, NAMESPACE, World
from live_asks import (
    CARD_MIB,
    CARD_MILLI,
    Json,
    ask_of,
    bound_since_s,
    cpu_of,
    ended,
    expected,
    fits,
    node_of,
    on_gpu,
    overbooked,
    waits,
)
from live_faults import change_label
from live_instance import POINTS, Instance
from live_jobs import Cards, gang_of
from live_line import FACTS, is_in_line, let_go, open_to
from ways import DEFAULT, Way

from fakes.api_memory import MemoryClient, MemoryLine
from fakes.api_time import LoopClock, run
from weft.cluster.control.live_cluster import EngineCluster
from weft.core.engine import PolicyInput
from weft.core.engine.assessment import Assessment
from weft.core.engine.overbooking import RECENT_NS
from weft.core.framework.fragments import TYPICAL_PODS
from weft.core.framework.popularity import POPULAR_PODS, weighted_input
from weft.core.ledger import audit
from weft.core.ledger.audit import differences
from weft.model import Code, PodRequest
from weft.testing import shape

OFTEN_S, LEAP_S, LEAPS = 0.5, 700.0, 0.001  # between two steps; one in a thousand takes minutes
MOST_PODS = 40
QUIET_S, SILENT_S = 60, 90  # a watch is given up 120 s after the last that came, maybe late
MOST_TURNING = 30  # rounds of ten seconds in which places are kept and given up
GANGS_S = 120  # what runs of a gang without the rest goes after a minute


def schedule(
    seed: int,
    way: Way = DEFAULT,
    *,
    slips: bool = False,
    mistakes: bool = False,
    steps: int = 60,
    hours: float = 0,
) -> Counter[str]:
    """Play it; the hits of its fault points. Raises AssertionError with what did not hold.

    `hours`: so long, with a step every ten seconds or so, instead of `steps` that follow sooner.
    """

    async def play() -> Counter[str]:
        world = World(seed, way, slips=slips, mistakes=mistakes)
        world.begin()
        loop = asyncio.get_running_loop()
        work = [world.keep_alive(), world.kube_scheduler()]
        if world.rules is not None:
            work.append(world.rules.controllers().run())
        actors = [loop.create_task(each) for each in work]
        for point in world.random.sample(POINTS, world.random.choice((1, 2, 3))):
            world.plan_crash(point)
        done, until = 0, loop.time() + hours * 3600
        while loop.time() < until if hours else done < steps:
            done += 1
            leaps = world.random.random() < LEAPS
            world.hits["minutes without an event"] += leaps
            mean_s = LEAP_S if leaps else OFTEN_S if not hours else world.random.choice((0.5, 20))
            await asyncio.sleep(world.random.expovariate(1 / mean_s))
            step(world)
            assert not world.violations, told(world, seed)
            if hours:
                thin_out(world)
        await quiet(world)
        actors[0].cancel()
        await settled(world)
        assert not world.violations, told(world, seed)
        for instance in world.instances:
            instance.kill()
        return world.hits

    return run(play())


def thin_out(world: World) -> None:
    """In hours, more pods come than go."""
    pods = world.pods()
    for pod in pods[: len(pods) - MOST_PODS]:
        world.remove(pod)


def told(world: World, seed: int) -> str:
    return f"seed {seed}: " + "\n".join(world.violations[:5])


# --- chaos ---


def step(world: World) -> None:
    """One random thing happens."""
    names, weights = zip(*((name, weight) for name, weight, _ in STEPS), strict=True)
    name = world.random.choices(names, weights)[0]
    what = next(do for known, _, do in STEPS if known == name)
    if what(world):
        world.hits[name] += 1


def _add(world: World) -> bool:
    gates = {"schedulingGates": [{"name": "g"}]} if world.random.random() < 0.15 else {}
    world.add_pod(**gates)
    return True


def _edit_at_once(world: World) -> bool:
    """Added, and edited before anybody heard of it."""
    return change_label(world, world.add_pod())


def _cut_off(world: World) -> bool:
    """A process that binds, and cannot renew its lease."""
    now = asyncio.get_running_loop().time()
    return _one(world, lambda one: world.faulty.cut_off.update({one.name: now + 12}))


def _ungate(world: World) -> bool:
    pod = world.some([p for p in world.pods() if p["spec"].get("schedulingGates")])
    if pod is not None:
        world.update(pod, {"spec": {"schedulingGates": None}})
    return pod is not None


def _delete(world: World) -> bool:
    pod = world.some(world.pods())
    if pod is None:
        return False
    world.delete(pod)
    return True


def _gang(world: World) -> bool:
    return world.jobs.comes()


def _gang_goes(world: World) -> bool:
    return world.jobs.goes()


def _controllers(world: World) -> bool:
    return world.jobs.tend()


def _make_again(world: World) -> bool:
    pod = world.some([p for p in world.pods() if waits(p)])
    if pod is not None:
        world.make_again(pod)
    return pod is not None


def _label(world: World) -> bool:
    pod = world.some([p for p in world.pods() if waits(p)])
    return pod is not None and change_label(world, pod)


def _foreign(world: World) -> bool:
    """Another scheduler's pod, with no marks: its share may be anywhere on the node."""
    pod = world.add_pod(scheduler="foreign")
    if ask_of(pod).whole:
        world.remove(pod)
        return False
    world.bind_foreign(pod, world.random.choice(list(world.gpus)))
    return True


def _steal(world: World) -> bool:
    pod = world.some([p for p in world.pods() if waits(p) and not ask_of(p).whole])
    if pod is not None:
        world.bind_foreign(pod, world.random.choice(list(world.gpus)))
    return pod is not None


def _kubelet(world: World) -> bool:
    world.kubelet()
    return True


def _cut(world: World) -> bool:
    world.server.cut_watches()
    return True


def _silence(world: World) -> bool:
    """A watch that looks alive and says nothing any more."""
    found = world.server.watches("pods") + world.server.watches("nodes")
    if found:
        world.random.choice(found).silence()
    return bool(found)


def _compact(world: World) -> bool:
    world.server.compact()
    world.server.cut_watches()
    return True


def _restart_server(world: World) -> bool:
    """Restarts the server; no watch tells what happens meanwhile, and sometimes no history
    either."""
    server = world.server
    server.reachable = False
    server.reset()
    back = world.random.choice((0.1, 1, 3, 6))
    asyncio.get_running_loop().call_later(back, setattr, server, "reachable", True)
    if world.random.random() < 0.5:
        for pod in world.random.sample(world.pods(), len(world.pods()) // 4):
            world.remove(pod)
        server.compact()
    return True


def _one(world: World, do: Callable[[Instance], None]) -> bool:
    found = [one for one in world.living() if not one.stopping]
    if found:
        do(world.random.choice(found))
    return bool(found)


def _kill(world: World) -> bool:
    return _one(world, Instance.kill)


def _terminate(world: World) -> bool:
    return _one(world, Instance.terminate)


def _pause(world: World) -> bool:
    length = world.random.choice((0.5, 1, 2))
    if world.slips and world.random.random() < 0.5:
        length = world.random.choice((8, 14, 20))
    _one(world, lambda one: world.stop(one, length))
    return False  # counted where it is done


def _hand_over(world: World) -> bool:
    """To one whose watches are behind: it has not seen what the leader did last."""
    loop, found = asyncio.get_running_loop(), [one for one in world.living() if not one.stopping]
    leaders, others = ([o for o in found if o.leads is leads] for leads in (True, False))
    for other in others:
        other.behind_until = loop.time() + world.random.choice((20, 40))
    for leader in leaders:
        loop.call_later(world.random.uniform(0.5, 6), _end(world, leader))
    return bool(leaders and others)


def _end(world: World, one: Instance) -> Callable[[], None]:
    end = world.random.choice((one.kill, one.terminate))
    return lambda: None if world.calm or one.over else end()


def _clock(world: World) -> bool:
    def jump(one: Instance) -> None:
        one.clock.wall_offset_s += world.random.choice((-86_400, -30, 30, 86_400))

    return _one(world, jump)


def _ask_why(world: World) -> bool:
    """Somebody asks about a pod; no process ends by it, and some answer comes."""
    pod = world.some(world.pods())

    def ask(one: Instance) -> None:
        if pod is not None and one.explainer is not None and one.live and one.live.ready:
            one.spawn(one.explainer.explain(NAMESPACE, pod["metadata"]["name"]))

    return pod is not None and _one(world, ask)


def _read_metrics(world: World) -> bool:
    def read(one: Instance) -> None:
        if one.metrics is not None and one.live and one.live.ready:
            list(one.metrics.collect())

    return _one(world, read)


def _plan(world: World) -> bool:
    world.plan_crash(world.random.choice(POINTS))
    return True


STEPS: tuple[tuple[str, float, Callable[[World], bool]], ...] = (
    ("pod added", 16, _add),
    ("pod ungated", 2, _ungate),
    ("pod edited at once", 3, _edit_at_once),
    ("lease out of reach", 0.8, _cut_off),
    ("pod deletion asked", 4, _delete),
    ("pod made again", 1, _make_again),
    ("gang comes", 2, _gang),
    ("gang deleted", 0.3, _gang_goes),
    ("controllers look", 3, _controllers),
    ("label changed", 1.5, _label),
    ("foreign pod", 1, _foreign),
    ("pod bound by another", 0.7, _steal),
    ("node deleted", 0.7, live_nodes.goes),
    ("node back", 1.5, live_nodes.comes),
    ("node joins", 1, live_nodes.joins),
    ("node leaves", 0.5, live_nodes.leaves),
    ("node gains a GPU", 0.8, live_nodes.gains),
    ("node loses a GPU", 0.5, live_nodes.loses),
    ("kubelet", 14, _kubelet),
    ("watches cut", 1, _cut),
    ("watch silent", 0.6, _silence),
    ("compaction", 0.8, _compact),
    ("API server restarted", 0.7, _restart_server),
    ("killed", 0.7, _kill),
    ("terminated", 0.8, _terminate),
    ("stopped for a while", 1.2, _pause),
    ("handed over to one behind", 1.5, _hand_over),
    ("wall clock jumped", 0.7, _clock),
    ("crash planned", 1.5, _plan),
    ("asked why", 2, _ask_why),
    ("metrics read", 1, _read_metrics),
)


# --- quiet ---


async def quiet(world: World) -> None:
    """Nothing goes wrong any more; time passes until everybody has found out everything."""
    world.calm = True
    for instance in world.instances:
        instance.wake()
    longer = SILENT_S + world.behind_s() if world.hits["watch silent"] else 0
    longer += GANGS_S if world.jobs.gangs else 0
    rounds, since_last, turning = math.ceil((QUIET_S + longer) / 10), 0, 0
    turned = world.line.turned()
    while rounds > 0 or since_last < 2:  # who waits for what went last needs a while, too
        await asyncio.sleep(10)
        rounds, since_last = rounds - 1, since_last + 1
        world.server.bookmark()
        while live_nodes.comes(world):
            pass
        world.collect_strays()
        world.jobs.tend()
        for pod in world.pods():
            if pod["metadata"].get("deletionTimestamp"):
                world.remove(pod)
                since_last = 0
        if turned != (turned := world.line.turned()):
            since_last, turning = 0, turning + 1
            if turning > MOST_TURNING:
                give_up(world)


def give_up(world: World) -> None:
    """Delete a pod that has a turn, else a gang: places are kept by turns for ever where pods wait
    for what never ends, and an end that is judged needs a while without."""
    having = {
        turn.key
        for one in world.living()
        if one.live is not None and one.leads
        for turn in one.live.engine.kept_places.turns.values()
    }
    if pod := next((each for each in world.pods() if each["metadata"]["uid"] in having), None):
        world.remove(pod)
    else:
        world.jobs.goes()


async def settled(world: World) -> None:
    """The end: the scheduler believes what the API's objects say, and nobody waits in vain."""
    leaders = [one for one in world.living() if one.leads]
    if len(leaders) != 1:
        world.violation(f"{len(leaders)} leaders")
        return
    for instance in world.living():
        assert instance.live is not None
        _agrees(world, instance.live, instance.name)
    for instance in world.instances:
        if instance.live is not None and instance.live.faults.count and not world.mistakes:
            world.violation(f"{instance.name}: {instance.live.faults.count} faults of its own")
    live = leaders[0].live
    assert live is not None
    world.line.settled(live)
    _nobody_waits_in_vain(world, live)
    let_go(live.engine)
    for name in world.gpus:
        here = [pod for pod in world.pods() if node_of(pod) == name and not ended(pod)]
        for gpu in overbooked(here, name):
            if name not in world.shrunk and not _all_long_ago(on_gpu(here, gpu)):
                world.violation(f"GPU {gpu} of {name} is still overbooked by Weft's own pods")
    line = MemoryLine(world.server, delay=lambda: 0, lag=lambda: 0)
    async with MemoryClient(line, "fresh", clock=LoopClock(), rng=world.random) as client:
        fresh = world.cluster(client, None).live
        await fresh.start()
        _agrees(world, fresh, "a fresh start")
        for text in differences(live.engine.ledger.table, fresh.engine.ledger.table):
            world.violation(f"a fresh start differs: {text}")
        placed = [_tell_what_is_usual(cluster) for cluster in (live, fresh)]
        for pod in world.pods():
            _decides_alike(world, (live, fresh), placed, pod)
        await fresh.stop()


def _all_long_ago(pods: list[Json]) -> bool:
    """Tells whether who was bound last has run for so long that it stays, as where its node was
    away all the while."""
    return RECENT_NS < min(map(bound_since_s, pods)) * 1e9 < math.inf


def _agrees(world: World, live: EngineCluster, name: str) -> None:
    held = {uid: each for uid, each in live.engine.ledger.holdings.items() if not is_in_line(uid)}
    bound = {p["metadata"]["uid"]: p for p in world.pods() if node_of(p) and not ended(p)}
    for uid in held.keys() ^ bound.keys():
        what = "holds what is not bound" if uid in held else "does not hold what is bound"
        world.violation(f"{name} {what}: {uid}")
    for uid in held.keys() & bound.keys():
        one, pod = held[uid], bound[uid]
        if one.state != "committed" or one.placement.node != node_of(pod):
            world.violation(f"{name}: {uid} is {one.state} on {one.placement.node}")
        want = expected(pod, world.gpus.get(node_of(pod), 0))
        if one.placement.cpu_milli != cpu_of(pod):
            world.violation(f"{name}: {uid} counts with {one.placement.cpu_milli}m of CPU")
        has = sorted((s.gpu, s.memory_mib, s.milli) for s in one.placement.shares)
        if want is not None and has != want:
            world.violation(f"{name}: {uid} is charged {has} instead of {want}")
    if world.rules is not None:
        world.rules.probe(live, name)
    for text in audit(live.engine.ledger):
        if not any(fact in text for fact in FACTS):
            world.violation(f"{name}: {text}")


def _nobody_waits_in_vain(world: World, live: EngineCluster) -> None:
    """By arithmetic on the API's objects, but where the pod's policy keeps it off for reasons of
    its own."""
    preemption = live.engine.preemption
    for uid in preemption.nominations:
        world.violation(f"a place is kept for {uid}, and nobody leaves any more")
    pods = {pod["metadata"]["uid"]: pod for pod in world.pods()}
    for pod in pods.values():
        if not waits(pod) or pod["spec"]["schedulerName"] not in (*world.way.pods_names, ANOTHER):
            continue
        uid = pod["metadata"]["uid"]
        if gang_of(pod):
            continue
        opened = _opened(live, pod)
        found = _assessed(live, pod, without=opened)
        if found is not None and found.counts[0]:
            world.violation(f"{uid} waits, and Weft knows where it fits")
        free = _free(world, live, opened)
        ends = _whom_it_may_end(live, pod, pods) if _decided_by_room(found) else ()
        without = _free(world, live, {*ends, *opened}) if ends else free
        for name in free:
            if _kept_off(world, live, pod, name):
                continue
            if fits(ask_of(pod), [(mib, milli, bool(idle)) for mib, milli, idle in free[name]]):
                world.violation(f"{uid} waits, and fits on {name}")
            elif fits(
                ask_of(pod), [(mib, milli, bool(idle)) for mib, milli, idle in without[name]]
            ):
                world.violation(f"{uid} waits, and others may be ended for it on {name}")
    for wrong in world.jobs.settled(
        lambda pod: _free(world, live, _opened(live, pod)),
        lambda pod, name: _kept_off(world, live, pod, name),
        lambda pod: _filtered(_assessed(live, pod)),
    ):
        world.violation(wrong)


def _opened(live: EngineCluster, pod: Json) -> list[str]:
    """List what is kept for the pod, its gang, or for others that it goes before, by UID."""
    known = live.pod(NAMESPACE, pod["metadata"]["name"])
    return [] if known is None else open_to(live.engine, live.parse(known))


def _decided_by_room(found: Assessment | None) -> bool:
    """True where neither a policy of the pod's refuses GPUs that have room, nor others' end may
    break its own rules."""
    if found is None or found.shape.constraints.pods:
        return False
    return not (found.profile.node_filters or found.profile.device_filters)


def _whom_it_may_end(live: EngineCluster, pod: Json, pods: Mapping[str, Json]) -> list[str]:
    """The pods of lower priority, by UID, that need not end with others of a gang."""
    if pod["spec"]["schedulerName"] == ANOTHER:
        return []  # kube-scheduler judges by itself
    return [
        uid
        for uid, lower in pods.items()
        if lower["spec"]["priority"] < pod["spec"]["priority"] and not gang_of(lower)
        if live.engine.preemption.may_end(uid)
    ]


def _free(world: World, live: EngineCluster, without: Container[str]) -> Cards:
    """Sum up what is free of each GPU of each node, without these pods."""
    free = {name: [[CARD_MIB, CARD_MILLI, 1] for _ in range(n)] for name, n in world.gpus.items()}
    for uid, held in live.engine.ledger.holdings.items():
        for share in () if uid in without else held.placement.shares:
            if share.gpu < len(free[held.placement.node]):  # else the node lost it
                card = free[held.placement.node][share.gpu]
                card[0] -= share.memory_mib
                card[1] -= share.milli
                card[2] = 0
    return free


def _kept_off(world: World, live: EngineCluster, pod: Json, node: str) -> bool:
    """True if something else than room keeps the pod off the node, or may."""
    found = _assessed(live, pod, without=_opened(live, pod))
    # Of several GPUs at once the reason of the last search stands, not the policy's.
    if world.gives_more or (_filtered(found) and ask_of(pod).count > 1):
        return True
    if found is not None and node in _refused_by_policy(live, found):
        return True
    own = pod["spec"]["schedulerName"] != ANOTHER
    if own and world.rules is not None and world.rules.keeps_off(world.rules.cluster(), pod, node):
        world.hits["kept waiting by a rule"] += 1
        return True
    return False


def _filtered(found: Assessment | None) -> bool:
    """True if a policy of the pod's refuses GPUs that have room."""
    return found is not None and bool(found.profile.device_filters)


def _assessed(
    cluster: EngineCluster,
    pod: Json,
    beside: Sequence[PodRequest] | None = (),
    without: Sequence[str] = (),
) -> Assessment | None:
    """The answers of the pod's profile about all nodes, if these held nothing; `beside` as
    `Engine.assess` has it."""
    known = cluster.pod(NAMESPACE, pod["metadata"]["name"])
    if known is None:
        return None
    judged = pod["spec"]["schedulerName"] == ANOTHER  # by kube-scheduler
    request = cluster.parse_asked(known) if judged else cluster.parse(known)
    with cluster.engine.trial(without):
        return cluster.engine.assess(cluster.engine.profile_of(request), request, beside)


def _refused_by_policy(live: EngineCluster, found: Assessment) -> set[str]:
    rows = (found.codes == Code.POLICY).nonzero()[0].tolist()
    return {live.engine.ledger.table.nodes[row].name for row in rows}


def _tell_what_is_usual(cluster: EngineCluster) -> list[str]:
    """Prices depend on when they were made, and by what had come then: make them now, alike.

    Return the pods that were placed by this: it wakes all, and `let_go` gave places away that were
    kept, so a process that leads places pods that fit nowhere before."""
    held = set(cluster.engine.ledger.holdings)
    usual = weighted_input({shape(memory_mib=4_000): 3, shape(gpus=1): 1})
    for name in (TYPICAL_PODS, POPULAR_PODS):
        cluster.handle(PolicyInput(name, usual))
    return sorted(set(cluster.engine.ledger.holdings) - held)


def _decides_alike(
    world: World, clusters: Sequence[EngineCluster], placed: Sequence[list[str]], pod: Json
) -> None:
    if not waits(pod):
        return
    # Whoever waits is no matter: one that does not lead has nobody in its queue.
    found = [
        _assessed(cluster, pod, beside=None, without=new)
        for cluster, new in zip(clusters, placed, strict=True)
    ]
    totals = [None if one is None else one.total.tolist() for one in found]
    if totals[0] != totals[1]:
        world.violation(f"a fresh start decides otherwise about {pod['metadata']['name']}")
