"""A cluster in which everything goes wrong, and the whole scheduler in it, in time that leaps.

`World` owns the fake API server, the processes of the scheduler and everybody else: users, the
kubelet, kube-scheduler with its extender, foreign binders, broken networks. What must hold is
checked at every write, from the API's objects alone.
"""

import asyncio
import json
import math
import traceback
from collections import Counter
from random import Random
from typing import Any

from led_cluster import led
from live_asks import (
    ANOTHER,
    CARD_MIB,
    Json,
    ended,
    mismatch,
    node_of,
    not_its_marks,
    overbooked,
    random_spec,
    waits,
)
from live_faults import Faulty
from live_instance import BIND_S, LEASE_S, Instance, task_factory
from live_jobs import LiveJobs, gang_of
from live_line import LiveLine
from live_rules import LiveRules
from ways import Way

from fakes.api_http import Request
from fakes.api_server import FakeApiServer
from fakes.api_store import ApiRefusal, StoredWrite
from fakes.api_time import LoopClock
from weft.cluster.extender.routes import Route
from weft.cluster.leader.leader_parts import LeaderParts
from weft.kube.client import ApiClient
from weft.kube.lease import Elector
from weft.testing import AGENT_BY_NAME

NAMESPACE = "d"
ROUTE = Route("/weft")
ASKS_S = 5.0  # how long kube-scheduler waits for an answer to its bind


class World:
    """See this module's head. `slips`: processes may be stopped for longer than their lease.
    `mistakes`: what is done beside deciding (prices, learning, scores) breaks off at times."""

    def __init__(self, seed: int, way: Way, *, slips: bool = False, mistakes: bool = False) -> None:
        self.random = Random(seed)
        self.seed, self.way, self.slips = seed, way, slips
        self.mistakes = mistakes
        self.gives_more = any(profile.pre_filters for profile in way.profiles(seed))
        self.hits: Counter[str] = Counter()
        self.violations: list[str] = []
        self.slipped: set[str] = set()
        self._last_holder = ""  # of the lease, also once it is released or deleted
        self._lease_stays_until = -math.inf
        self.server = FakeApiServer()
        self.faulty = Faulty(self, Random(seed + 1))
        self.instances: list[Instance] = []
        self.gpus: dict[str, int] = {}
        self.shrunk: set[str] = set()  # GPUs of these may have been numbered otherwise
        self.nodes_made = 0
        self.calm = False
        self._crashes: dict[str, int] = {}
        self._made = 0
        self._asking: set[str] = set()
        uids = Random(seed + 2)
        self.server.store.new_uid = lambda: f"u-{uids.getrandbits(48):012x}"
        self.server.store.now = LoopClock().wall
        self.server.store.listeners.append(self._changed)
        self.server.on_request = self._requested
        self.rules: LiveRules | None = LiveRules(self, seed + 3)
        self.line = LiveLine(self)
        self.jobs = LiveJobs(self, seed + 4)

    # --- objects ---

    def begin(self) -> None:
        """Nodes, pods that were there before, and a free Lease."""
        asyncio.get_running_loop().set_task_factory(task_factory)
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        self.server.add("leases", {"metadata": {"name": "weft"}, "spec": {}}, "kube-system")
        if self.rules is not None:
            self.rules.begin()
        for _ in range(1 if self.slips else self.random.choice((1, 1, 2, 4))):
            self.new_node()
        for _ in range(self.random.randint(0, 12)):
            self.add_pod()
        for number in range(2 if self.slips else self.random.choice((1, 1, 2))):
            self.start(number)

    def new_node(self) -> None:
        """One that was never there joins."""
        name = f"n{self.nodes_made}"
        self.nodes_made += 1
        self.gpus[name] = self.random.choice((1, 2, 2, 4))
        self.add_node(name)

    def add_node(self, name: str) -> None:
        has = {"cpu": "640", "memory": "640Gi", "pods": "110"}
        status = {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}
        marks = {**self._inventory(name), **AGENT_BY_NAME}
        said = {} if self.rules is None else self.rules.of_node(name)
        meta = {"name": name, "annotations": marks, "labels": said.get("labels", {})}
        body = {"metadata": meta, "spec": {"taints": said.get("taints", [])}, "status": status}
        self.server.add("nodes", body)

    def change_gpus(self, name: str, count: int) -> None:
        """The node, which is there, has so many GPUs from now on."""
        if count < self.gpus[name]:
            self.shrunk.add(name)
        self.gpus[name] = count
        self.server.update("nodes", name, {"metadata": {"annotations": self._inventory(name)}}, "")

    def _inventory(self, name: str) -> dict[str, str]:
        cards = [{"index": i, "memory_mib": CARD_MIB} for i in range(self.gpus[name])]
        return {"weft.dev/inventory": json.dumps({"gpus": cards})}

    def collect_strays(self) -> None:
        """As the cluster's garbage collection does with pods of nodes that left for good."""
        for pod in self.pods():
            if node_of(pod) and node_of(pod) not in self.gpus:
                self.remove(pod)

    def add_pod(self, *, scheduler: str = "", name: str = "", **more: Any) -> Json:
        self._made += 1
        spec, labels = random_spec(self.random)
        if not scheduler:
            scheduler = self.random.choice((*self.way.pods_names, ANOTHER))
        if self.rules is not None and scheduler in self.way.pods_names:
            rules, more_labels = self.rules.of_pod(f"c{self._made}")
            spec, labels = {**spec, **rules}, {**labels, **more_labels}
        meta = {"name": name or f"p{self._made}", "namespace": NAMESPACE, "labels": labels}
        priority = self.random.choice((0, 0, 1, 2, 3))
        spec = {**spec, "schedulerName": scheduler, "priority": priority, **more}
        return self.server.add("pods", {"metadata": meta, "spec": spec})

    def pods(self) -> list[Json]:
        return self.server.store.all(self.server.kind("pods"))

    def some(self, found: list[Json]) -> Json | None:
        return self.random.choice(found) if found else None

    def update(self, pod: Json, change: Json) -> None:
        self.server.update("pods", pod["metadata"]["name"], change, NAMESPACE)

    def remove(self, pod: Json) -> None:
        self.server.remove("pods", pod["metadata"]["name"], NAMESPACE)
        if self.rules is not None:
            self.rules.gone(pod)

    def delete(self, pod: Json) -> None:
        """As kubectl does: who is bound gets time, who is not is gone at once."""
        if node_of(pod) and not ended(pod):
            self.update(pod, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
        else:
            self.remove(pod)

    def try_remove(self, resource: str, name: str, namespace: str) -> bool:
        """Removes the object, and tells whether there was one."""
        if resource == "leases":  # whoever held it leads on; a stopped one's binding still slips
            now = asyncio.get_running_loop().time()
            if now < self._lease_stays_until:  # twice in one duration is a limit, see `kube.lease`
                return False
            self._lease_stays_until = now + 3 * LEASE_S
        try:
            self.server.remove(resource, name, namespace)
        except ApiRefusal:
            return False
        return True

    def make_again(self, pod: Json) -> None:
        """Another pod of that name, as a StatefulSet makes it."""
        self.remove(pod)
        self.add_pod(name=pod["metadata"]["name"], scheduler=pod["spec"]["schedulerName"])

    def bind_foreign(self, pod: Json, node: str) -> None:
        """Somebody who writes nothing down binds it."""
        self.update(pod, {"spec": {"nodeName": node}})

    # --- processes ---

    def cluster(self, client: ApiClient, lease: Elector | None) -> LeaderParts:
        """The cluster that a process decides by, its policies made anew."""
        profiles, names = self.way.profiles(self.seed), self.way.pods_names
        keeps = self.line.rules
        parts = led(client, profiles, names=names, seed=1, lease=lease, head_of_line=keeps)
        live = parts.live
        self.line.watch(live)
        for policy in live.engine.policies:
            if policy.prices_every is not None:
                self._count(policy, "take_table", "prices made")
            if policy.inputs:
                self._count(policy, "take_input", "typical pods learnt")
                self._count(policy, "prepare_input", "typical pods prepared")
        self._count(live.engine.assessor, "work_ahead", "scores made ahead")
        self._count(live.engine.peaks, "news", "peaks to keep")
        self._count(live.engine.oom_history, "shape_of", "charges looked up")
        return parts

    def _count(self, of: Any, method: str, point: str) -> None:
        """Counts how often a process does something of itself, beside the fault points."""
        rightly = getattr(of, method)

        def counted(*given: Any) -> Any:
            self.hits[point] += 1
            if self.mistakes and not self.calm and self.random.random() < 0.3:
                self.hits["mistakes"] += 1
                raise ZeroDivisionError(point)
            return rightly(*given)

        setattr(of, method, counted)

    def start(self, number: int) -> None:
        """A process in place `number`, its identity new."""
        name = f"weft-{number}-{len(self.instances)}"
        self.instances.append(Instance(self, name, self.random.getrandbits(32)))
        if len(self.instances) > len({one.name.split("-")[1] for one in self.instances}):
            for after_s in (self.random.uniform(0, 3), self.random.uniform(3, 15)):
                asyncio.get_running_loop().call_later(after_s, self._delete_bound)

    def _delete_bound(self) -> None:
        """A bound pod goes, which a process that began anew has only read of."""
        pod = None if self.calm else self.some([p for p in self.pods() if node_of(p)])
        if pod is not None:
            self.remove(pod)
            self.hits["deleted after a restart"] += 1

    def behind_s(self) -> float:
        """How much longer what the watches tell is on its way to somebody."""
        return max((one.behind_s() for one in self.living()), default=0.0)

    def living(self) -> list[Instance]:
        return [one for one in self.instances if not one.dead]

    def plan_crash(self, point: str) -> None:
        """The next process that comes to this point, or one of the next, dies there."""
        self._crashes[point] = self.random.randint(1, 3)

    def crash_due(self, point: str) -> bool:
        if point not in self._crashes or self.calm:
            return False
        self._crashes[point] -= 1
        if self._crashes[point]:
            return False
        del self._crashes[point]
        self.hits[f"crash {point}"] += 1
        return True

    def stops_here(self) -> bool:
        """Tells whether a process that is just sending a binding is stopped, after its last
        check."""
        return self.slips and not self.calm and self.random.random() < 0.1

    def ends_here(self) -> bool:
        """Tells whether a process that is just sending a binding is told to end."""
        return not self.calm and self.random.random() < 0.01

    def stop(self, one: Instance, length_s: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        self.hits["stopped beyond its lease" if length_s > BIND_S else "stopped for a while"] += 1
        one.pause()
        asyncio.get_running_loop().call_later(length_s, one.wake)

    async def keep_alive(self) -> None:
        """Whoever ended is started again, after a while."""
        while True:
            await asyncio.sleep(self.random.uniform(0.2, 3))
            alive = {one.name.split("-")[1] for one in self.living()}
            for number in sorted({one.name.split("-")[1] for one in self.instances} - alive):
                self.start(int(number))

    # --- kube-scheduler ---

    async def kube_scheduler(self) -> None:
        """Asks the extender about its pods, again and again."""
        while True:
            await asyncio.sleep(
                self.random.uniform(5, 10) if self.calm else self.random.uniform(0.2, 2)
            )
            found = self.living()
            leaders = [one for one in found if one.leads] or found
            for pod in self.pods():
                uid = pod["metadata"]["uid"]
                mine = pod["spec"]["schedulerName"] == ANOTHER and waits(pod)
                if not mine or uid in self._asking or not leaders:
                    continue
                asked = self.random.choice(leaders if self.random.random() < 0.9 else found)
                self._asking.add(uid)
                asyncio.get_running_loop().create_task(self._ask(asked, pod))

    async def _ask(self, asked: Instance, pod: Json) -> None:
        """filter, then bind on one of the nodes that are left; give up after a while."""
        meta = pod["metadata"]
        try:
            if asked.extender is None or not asked.live or not asked.live.ready:
                return
            names = [node["metadata"]["name"] for node in self.nodes()]
            asks = _encode({"Pod": pod, "NodeNames": names})
            reply = asked.answer(asked.extender.filter, ROUTE, asks)
            fits = json.loads(reply.body)["NodeNames"] or []
            if not fits:
                return
            await asyncio.sleep(self.random.choice((0, 0.01, 0.5)))
            node = self.random.choice(fits)
            body = {"PodName": meta["name"], "PodNamespace": NAMESPACE, "PodUID": meta["uid"]}
            if asked.dead:
                return
            task = asked.spawn(asked.extender.bind(ROUTE, _encode({**body, "Node": node})))
            await asyncio.wait({task}, timeout=ASKS_S)
            if not task.done():
                self.hits["kube-scheduler gave up waiting"] += 1
            elif not task.cancelled() and not task.result().failed:
                self._check_promise(meta["uid"], node)
        finally:
            self._asking.discard(meta["uid"])

    def nodes(self) -> list[Json]:
        return self.server.store.all(self.server.kind("nodes"))

    def _check_promise(self, uid: str, node: str) -> None:
        """kube-scheduler was told that the pod is bound: so it is, or it is gone since."""
        for pod in self.pods():
            if pod["metadata"]["uid"] == uid and node_of(pod) != node:
                self.violation(f"kube-scheduler was told that {uid} is on {node}")

    # --- what must hold ---

    def violation(self, text: str) -> None:
        self.violations.append(f"{asyncio.get_running_loop().time():.2f}: {text}")

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note it; a task that nobody awaited may tell only when the loop has stopped."""
        error = context.get("exception")
        if error is not None and not isinstance(error, asyncio.CancelledError):
            told = "".join(traceback.format_exception(error))
            text = f"unhandled: {context.get('message')}: {error!r}\n{told}"
            self.violations.append(f"{loop.time():.2f}: {text}")

    def _requested(self, request: Request) -> None:
        self.jobs.binds(request)
        self.faulty.strike(request)

    def _changed(self, change: StoredWrite) -> None:
        """A write is in the store. Was it the lease, one of our bindings, or an eviction?"""
        if change.kind.resource == "leases" and change.new["metadata"]["name"] == "weft":
            self._last_holder = change.new["spec"].get("holderIdentity") or self._last_holder
        serving = self.server.serving
        if change.kind.resource != "pods" or change.type == "ADDED" or serving is None:
            return
        pod, old = change.new, change.old or {}
        if serving.path.endswith("/eviction"):
            self._check_eviction(old)
        elif serving.path.endswith("/binding"):
            self._check_binding(serving, pod)
        elif serving.method == "DELETE":
            self._check_end(serving, old)
        elif not old["status"].get("nominatedNodeName"):
            self.hits["place kept"] += bool(pod["status"].get("nominatedNodeName"))

    def _check_end(self, serving: Request, pod: Json) -> None:
        """Weft ends a pod for one of higher priority."""
        sender = serving.headers.get("user-agent", "")
        self.hits["ended for another"] += 1
        if self._last_holder != sender and not self.slips:
            self.violation(f"{sender} ends a pod, and {self._last_holder} held the lease last")
        for wrong in self.jobs.ends(sender, pod):
            self.violation(wrong)

    def _check_eviction(self, pod: Json) -> None:
        """Only where Weft gave a GPU away twice, and nobody who makes room is leaving already; or
        of a gang that runs in part."""
        if gang_of(pod):
            self.hits["evicted of a gang"] += 1
            return
        staying = [p for p in self.pods() if not p["metadata"].get("deletionTimestamp")]
        self.hits["evicted"] += 1
        if not overbooked([*staying, pod], node_of(pod)):
            self.violation(f"{pod['metadata']['uid']} is evicted without need")

    def _check_binding(self, serving: Request, pod: Json) -> None:
        sender, uid = serving.headers.get("user-agent", ""), pod["metadata"]["uid"]
        self.hits["bound"] += 1
        # Whoever led after the sender may have bound pods and released the lease since.
        stale = self._last_holder != sender
        if stale and self.slips:
            self.hits["slip"] += 1
            self.slipped.add(node_of(pod))
        elif stale:
            self.violation(f"{sender} bound {uid}, and {self._last_holder} held the lease last")
        told = json.loads(serving.body)["metadata"]
        # Without a version a label may change meanwhile; whose the marks are may not.
        versioned = bool(told.get("resourceVersion"))
        more = self.gives_more
        wrong = mismatch(pod, at_least=more) if versioned else not_its_marks(pod)
        if wrong:
            self.violation(f"{uid} of {sender}: {wrong}")
        self._check_reserved(sender, pod)
        judged = pod["spec"]["schedulerName"] == ANOTHER  # by kube-scheduler, which asked Weft
        asked = None if judged or self.slipped else self.rules
        decided_for_s = self._decided_for_s(sender, uid)
        if asked is not None and (broken := asked.broken_at_binding(pod, decided_for_s)):
            self.violation(f"{sender} bound {uid} to {node_of(pod)}, against {broken}")
        over = overbooked(self.pods(), node_of(pod))
        if over and node_of(pod) not in self.slipped:
            self.violation(f"{sender} bound {uid} to {node_of(pod)}: GPUs {over} over capacity")

    def _check_reserved(self, sender: str, pod: Json) -> None:
        """Room is kept for a binding that is under way, whatever its sender was told of it."""
        for one in self.living():
            if one.name == sender and one.live is not None:
                held = one.live.engine.ledger.holdings.get(pod["metadata"]["uid"])
                if held is None or held.placement.node != node_of(pod):
                    self.violation(f"{sender} bound {pod['metadata']['uid']}, and had given it up")

    def _decided_for_s(self, sender: str, uid: str) -> float:
        """How long ago the process decided so; a binding waits for claims that are not bound."""
        for one in self.instances:
            if one.name == sender and one.live is not None:
                placed = one.live.engine.placed.get(uid)
                return one.clock.monotonic() - placed.record.at_ns / 1e9 if placed else 0.0
        return 0.0

    def running(self) -> list[Json]:
        """Those whose kubelet makes them go on."""
        return self.pods()

    def kubelet(self) -> None:
        """A bound pod goes on by one step."""
        pod = self.some([p for p in self.running() if node_of(p) and not ended(p)])
        if pod is None:
            return
        if pod["metadata"].get("deletionTimestamp"):
            self.remove(pod)
        elif pod["status"]["phase"] == "Pending":
            self.update(pod, {"status": {"phase": "Running"}})
        elif self.rules is not None and self.random.random() < 0.3:
            self.resize(pod)
        else:
            phase = self.random.choice(("Succeeded", "Failed"))
            self.update(pod, {"status": {"phase": phase}})

    def resize(self, pod: Json) -> None:
        """A running pod asks for other CPU in place, and its node has set this aside for it."""
        container = pod["spec"]["containers"][0]
        asked, has = (f"{self.random.choice((0, 100, 900))}m" for _ in range(2))
        resources = {**container.get("resources", {}), "requests": {"cpu": asked}}
        told = {"allocatedResources": {"cpu": has}, "resources": {"requests": {"cpu": has}}}
        self.update(
            pod,
            {
                "spec": {"containers": [{**container, "resources": resources}]},
                "status": {"containerStatuses": [{"name": container["name"], **told}]},
            },
        )
        self.hits["pod resized"] += 1


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()
