"""Asks an API server about every verb on every resource, for each of Weft's accounts and roles."""

import asyncio
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
from control_plane import READERS, ControlPlane
from listed_rights import listed_rights
from strict_cluster import OURS, SYSTEM, TEAM

from weft.kube.client import ApiClient
from weft.kube.config import load
from weft.model.manifest import Api

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
UNUSUAL = ("impersonate", "bind", "escalate", "approve", "sign", "use")
NAMED = {"get", "update", "patch", "delete"}
"""Verbs on one object, which a rule may name."""
FOR_ALL = {
    ("create", "selfsubjectaccessreviews.authorization.k8s.io"),
    ("create", "selfsubjectrulesreviews.authorization.k8s.io"),
    ("create", "selfsubjectreviews.authentication.k8s.io"),
}
"""Rights that Kubernetes gives everybody who is known."""
IDENTITIES = ("users", "groups", "serviceaccounts", "uids.authentication.k8s.io")
PATHS = ("/explain/*", "/metrics", "/logs/", "/debug/pprof/", "/configz", "/")
ACCOUNTS = (
    *("weft-scheduler", "weft-agent", "weft-explain", "weft-webhook", "weft-cleanup"),
    "weft-console",
)
PEOPLE = {"role weft-inspect": "inspector", "role weft-explain": "explainer"}
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_AT_ONCE = 16
LONG = bool(os.environ.get("WEFT_TEST_LONG"))


class AskedRight(NamedTuple):
    """As `ListedRight`; `name` is "" where any object is meant."""

    who: str
    verb: str
    resource: str
    namespace: str
    name: str


class _Status(Api, frozen=True):
    allowed: bool


class _Review(Api, frozen=True):
    status: _Status


class AccessMatrix:
    """Accounts × verbs × resources × namespaces × objects."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def rights(self) -> list[AskedRight]:
        """Each of them, and all that are listed. In the short form resources that nobody is granted
        are asked for in one namespace, and for service accounts alone."""
        resources = dict(self._resources())
        whose = (*ACCOUNTS, *PEOPLE, "role weft-reader")
        found = {AskedRight(*right): None for right in listed_rights()}
        granted = {right.resource for right in listed_rights()} | {"secrets"}
        named = {(right.resource, right.name) for right in listed_rights() if right.name}
        for who, (resource, namespaced) in itertools.product(whose, resources.items()):
            everywhere = LONG or resource in granted
            if not everywhere and who not in ACCOUNTS:
                continue
            places = (TEAM, SYSTEM, OURS)[: 3 if everywhere else 1] if namespaced else ("",)
            names = ["", *sorted(name for of, name in named if of == resource)]
            for verb, place, name in itertools.product((*VERBS, *UNUSUAL), places, names):
                usual = verb in VERBS or resource in IDENTITIES or "roles." in resource
                if usual and (not name or verb in NAMED) and (verb, resource) not in FOR_ALL:
                    found[AskedRight(who, verb, resource, place, name)] = None
        for who, path, verb in itertools.product(whose, PATHS, ("get", "post")):
            found[AskedRight(who, verb, path, "", "")] = None
        return list(found)

    async def answers(self, asked: Sequence[AskedRight]) -> dict[AskedRight, bool]:
        """Tells of each whether the API server allows it."""
        left = iter(asked)
        found: dict[AskedRight, bool] = {}
        async with ApiClient(load(paths=(self._plane.kubeconfig,))) as client:

            async def ask() -> None:
                for right in left:
                    body = msgspec.json.encode(_review_of(right))
                    answer = await client.call("POST", _REVIEWS, body)
                    found[right] = msgspec.json.decode(answer, type=_Review).status.allowed

            async with asyncio.TaskGroup() as tasks:
                for _ in range(_AT_ONCE):
                    tasks.create_task(ask())
        return found

    def _resources(self) -> Iterator[tuple[str, bool]]:
        """Every resource and subresource that the server has, and whether it has namespaces."""
        api = self._plane.api
        versions = ["/api/v1"]
        for group in api.request("GET", "/apis")["groups"]:
            versions += [f"/apis/{each['groupVersion']}" for each in group["versions"]]
        for version in versions:
            found = api.request("GET", version)
            group = found["groupVersion"].rpartition("/")[0]
            for each in found["resources"]:
                yield ".".join(filter(None, (each["name"], group))), each["namespaced"]
        for name in ("users", "groups", "uids.authentication.k8s.io", "*"):
            yield name, False


def _review_of(right: AskedRight) -> dict[str, object]:
    if right.resource.startswith("/"):
        path = right.resource.replace("*", "pods/d/p")
        about: dict[str, object] = {"nonResourceAttributes": {"path": path, "verb": right.verb}}
    else:
        plain, _, group = right.resource.partition(".")
        name, _, part = plain.partition("/")
        about = {
            "resourceAttributes": {
                "verb": right.verb,
                "group": group,
                "resource": name,
                "subresource": part,
                "namespace": right.namespace,
                "name": right.name,
            }
        }
    user, groups = _user_of(right.who)
    spec = {"user": user, "groups": [*groups, "system:authenticated"], **about}
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def _user_of(who: str) -> tuple[str, list[str]]:
    if who in ACCOUNTS:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{OURS}"]
        return f"system:serviceaccount:{OURS}:{who}", groups
    return (PEOPLE[who], []) if who in PEOPLE else ("reader", [READERS])
