"""Faults between a process and the API server, one request at a time."""

import asyncio
import json
from random import Random
from typing import TYPE_CHECKING

from live_asks import Json, ask_of, node_of, waits
from live_instance import of_preemption

from fakes.api_http import Request
from fakes.api_store import ApiRefusal

if TYPE_CHECKING:
    from faulty_world import World

# (fault, weight) by what is asked. What is after the colon is a status code.
_BINDING = (
    ("lose-request", 3),
    ("lose-answer", 4),
    ("status-after:500", 3),
    ("status-after:504", 2),
    ("status:500", 2),
    ("status:429", 2),
    ("delay", 7),
    ("delay-answer", 3),
    ("version moved", 5),
    ("storm", 2),
    ("pod deleted", 2),
    ("pod made again", 3),
    ("node deleted", 2),
    ("bound by another", 2),
    ("label changed", 6),
)
_OTHERS = (
    ("lose-request", 3),
    ("lose-answer", 3),
    ("status:500", 3),
    ("status:503", 1),
    ("status:429", 2),
    ("status-after:504", 1),
    ("delay", 3),
    ("delay-answer", 2),
)
_LEASE = (*_OTHERS, ("lease deleted", 2))
_WATCH = (("status:410", 2), ("status:500", 2), ("lose-request", 2))

BINDING_FAULTS = tuple(f"binding: {name}" for name, _ in _BINDING)


class Faulty:
    """Decides for every request what becomes of it."""

    def __init__(self, world: "World", random: Random) -> None:
        self.world, self.random = world, random
        self.cut_off: dict[str, float] = {}  # who does not reach the lease, until when
        self._storms: dict[str, int] = {}

    def strike(self, request: Request) -> None:
        """The request has come in; plan what happens to it."""
        world, random = self.world, self.random
        if world.calm or "user-agent" not in request.headers:
            return
        what, chance, table = _kind(request)
        if what == "lease" and self._is_cut_off(request.headers["user-agent"]):
            world.server.fault("lose-request", method=request.method, path=request.path)
            return
        if what == "binding" and self._storms.get(request.path, 0):
            self._storms[request.path] -= 1
            self._move_version(self._pod(request))
            return
        if not what or random.random() > chance:
            return
        names, weights = zip(*table, strict=True)
        name = random.choices(names, weights)[0]
        if self._happens(name, request):
            world.hits[f"{what}: {name}"] += 1

    def _is_cut_off(self, sender: str) -> bool:
        return asyncio.get_running_loop().time() < self.cut_off.get(sender, 0)

    def _happens(self, name: str, request: Request) -> bool:
        kind, _, code = name.partition(":")
        if " " in kind or kind == "storm":
            return self._to_the_world(kind, request)
        fault = self.world.server.fault(kind, method=request.method, path=request.path)
        if code:
            fault.code = int(code)
            fault.retry_after_s = 1 if code == "429" else None
        if kind.startswith("delay"):
            delay = self._delay(request)
            asyncio.get_running_loop().call_later(delay, fault.gate.set)
        return True

    def _delay(self, request: Request) -> float:
        """A binding without a version is never longer on its way than the server's own deadline
        after the client's; one with a version may come as late as it likes, if nobody else leads
        by then."""
        if not request.path.endswith("/binding"):
            return self.random.choice((0.5, 1.5, 4))
        return self.random.choice((0.5, 2.9, 3.3, 3.6, 4, 5.5))

    def _to_the_world(self, kind: str, request: Request) -> bool:
        """Something else happens right when the request comes in; whether it could."""
        world = self.world
        if kind == "lease deleted":
            return world.try_remove("leases", "weft", "kube-system")
        if kind == "node deleted":
            return world.try_remove("nodes", json.loads(request.body)["target"]["name"], "")
        pod = self._pod(request)
        if pod is None:
            return False
        match kind:
            case "version moved":
                self._move_version(pod)
            case "storm":
                self._storms[request.path] = 6
                self._move_version(pod)
            case "pod deleted":
                world.remove(pod)
            case "pod made again":
                world.make_again(pod)
            case "bound by another" if waits(pod) and not ask_of(pod).whole:
                world.bind_foreign(pod, self.random.choice(list(world.gpus)))
            case "label changed" if not node_of(pod):
                return change_label(world, pod)
            case _:
                return False
        return True

    def _move_version(self, pod: Json | None) -> None:
        if pod is not None:
            self.world.update(pod, {"status": {"message": f"m{self.random.random()}"}})

    def _pod(self, request: Request) -> Json | None:
        name = request.path.split("/")[-2]
        try:
            return self.world.server.get("pods", name, "d")
        except ApiRefusal:
            return None


def change_label(world: "World", pod: Json) -> bool:
    """Edit what a pod asks, where that can be edited: in a label; whether it is such a pod."""
    labels = pod["metadata"].get("labels") or {}
    if "genius/gpu-memory-each" not in labels:
        return False
    mib = world.random.choice((2_000, 5_000, 9_000))
    world.update(pod, {"metadata": {"labels": {"genius/gpu-memory-each": str(mib)}}})
    return True


def _kind(request: Request) -> tuple[str, float, tuple[tuple[str, int], ...]]:
    """The kind of the request, how often it goes wrong, and how."""
    path, method = request.path, request.method
    if what := of_preemption(request):
        return what, 0.3, _OTHERS
    by_path = (
        (path.endswith("/binding"), ("binding", 0.45, _BINDING)),
        ("/leases" in path, ("lease", 0.06, _LEASE)),
        ("/events" in path or path.endswith("/status"), ("", 0.0, ())),
        ("watch" in request.query, ("watch", 0.1, _WATCH)),
        (method == "GET" and "/pods/" in path, ("read-back", 0.2, _OTHERS)),
        (method == "PATCH", ("fence", 0.3, _OTHERS)),
        (method == "GET", ("list", 0.08, _OTHERS)),
    )
    return next((what for is_so, what in by_path if is_so), ("", 0.0, ()))
