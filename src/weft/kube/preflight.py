"""Checks before the first write that the API server is new enough and grants the needed rights.

Only a clear refusal is reported. If the API server does not answer now, the checks pass, and the
first real request fails instead.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from weft.kube.access import ResourceRight, may_i
from weft.kube.client import ApiClient
from weft.kube.clock import Backoff
from weft.kube.codec import Resource
from weft.kube.errors import ApiError, LostError, NotFoundError, NotSentError
from weft.model import BadInputError
from weft.model.manifest import Api

LEAST_MINOR = 30
"""The oldest minor version of Kubernetes 1 that is supported."""
ORIGINALS_LEASES = frozenset({"genius-scheduler", "hami-scheduler", "kube-scheduler"})
"""Leases in kube-system held by other schedulers whose schedulerName a profile of Weft may use."""
_UNANSWERED = (ApiError, LostError, NotSentError, ValueError, AttributeError, RecursionError)


_ANSWER_S, _MOST_WAIT_S, _SAID_EVERY_S = 5.0, 5.0, 30.0


async def wait_for_server(client: ApiClient, log: logging.Logger) -> None:
    """Return once the API server answers; log why it does not, at once and every 30 s."""
    began, backoff = client.clock.monotonic(), Backoff(0.5, _MOST_WAIT_S, client.rng)
    said = -_SAID_EVERY_S
    while True:
        with contextlib.suppress(LostError, NotSentError):
            await client.send("GET", "/version", timeout_s=_ANSWER_S)
        after_s = client.clock.monotonic() - began
        if not client.unanswered:
            break
        if after_s - said >= _SAID_EVERY_S:
            said = after_s
            text = "the API server %s does not answer: %s; retrying until it does"
            log.warning(text, client.endpoint.url, client.unanswered)
        await client.clock.sleep(backoff.next_s())
    if said >= 0:
        log.info("the API server answers, after %.0f s", after_s)


async def minor_of(client: ApiClient) -> int:
    """Return the API server's minor version, the 34 of 1.34; 0 if it does not say."""
    version = json.loads(await client.call("GET", "/version"))
    return int("".join(filter(str.isdecimal, str(version.get("minor", "")))) or 0)


async def check_server(
    client: ApiClient, who: str, rights: Iterable[ResourceRight], remedy: str
) -> None:
    """Raise `BadInputError` if the API server is too old or refuses `who` one of these rights;
    `remedy` says how to grant them. An API server that does not answer passes."""
    try:
        minor = await minor_of(client)
    except _UNANSWERED:
        return  # no answer yet
    if 0 < minor < LEAST_MINOR:
        problem = f"is 1.{minor}; upgrade the cluster to Kubernetes 1.{LEAST_MINOR} or newer"
        raise BadInputError("API server: version", problem)
    lacking = await lacking_of(client, rights)
    if lacking:
        names = ", ".join(map(str, lacking))
        raise BadInputError(f"rights of {who}", f"no permission to {names}; {remedy}")


async def serves(client: ApiClient, kinds: Sequence[Resource[Any]]) -> bool:
    """Return True if the API server has all of these kinds, which must be of one group and version.

    Raises the client's errors, except those that mean that the server does not have the group.
    """
    try:
        body = await client.call("GET", kinds[0].path)
    except NotFoundError:
        return False
    except ApiError as error:
        if error.code == 403:  # no discovery of the group, so no listing of its kinds
            return False
        raise
    listed = json.loads(body).get("resources") or ()
    names = {entry.get("name") for entry in listed if isinstance(entry, dict)}
    return {kind.name for kind in kinds} <= names


async def served_versions(client: ApiClient) -> frozenset[str]:
    """Return the server's API groups with versions, such as `resource.k8s.io/v1`, by one request.
    Raises the client's errors; `ValueError` for an answer that is not a list of groups."""
    listed = json.loads(await client.call("GET", "/apis"))
    groups = listed.get("groups") if isinstance(listed, dict) else None
    if not isinstance(groups, list):
        raise ValueError("GET /apis lists no groups")
    versions = [each.get("versions") or () for each in groups if isinstance(each, dict)]
    named = [each for group in versions for each in group if isinstance(each, dict)]
    return frozenset(str(each.get("groupVersion")) for each in named)


async def lacking_of(client: ApiClient, rights: Iterable[ResourceRight]) -> list[ResourceRight]:
    """Return the rights that this user lacks, according to the API server; a right about which it
    gives no answer counts as held."""
    asked: Sequence[ResourceRight] = tuple(rights)
    answers = await asyncio.gather(*(_has(client, right) for right in asked))
    return [right for right, has in zip(asked, answers, strict=True) if not has]


class OtherLeaseSpec(Api, frozen=True):
    """spec of a Lease: only the fields about its holder."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class OtherLease(Api, frozen=True):
    """A Lease of another program."""

    spec: OtherLeaseSpec = OtherLeaseSpec()


async def check_alone(client: ApiClient, scheduler_names: Iterable[str], own_lease: str) -> None:
    """Raise `BadInputError` if another scheduler leads that takes pods of one of these
    schedulerNames, as both would assign the same GPUs.

    kube-scheduler and schedulers built from it hold a Lease of their name in kube-system, the only
    Leases that Weft's Role lets it read. A scheduler without a Lease is not noticed. `own_lease` is
    shared by Weft's replicas.
    """
    for name in scheduler_names:
        lease = "kube-scheduler" if name == "default-scheduler" else name
        if lease == own_lease or lease not in ORIGINALS_LEASES:
            continue
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{lease}"
        try:
            spec = msgspec.json.decode(await client.call("GET", path), type=OtherLease).spec
        except _UNANSWERED:
            continue  # there is none, or it cannot be read
        if _is_held(spec):
            problem = (
                f"is {spec.holder_identity}, which also schedules pods of schedulerName {name}; "
                "scale its Deployment to 0, or leave that profile out of the configuration"
            )
            raise BadInputError(f"lease kube-system/{lease}: spec.holderIdentity", problem)


def _is_held(lease: OtherLeaseSpec) -> bool:
    if not lease.holder_identity or not lease.renew_time:
        return False
    renewed = datetime.fromisoformat(lease.renew_time).timestamp()
    return time.time() < renewed + (lease.lease_duration_seconds or 0)


async def _has(client: ApiClient, right: ResourceRight) -> bool:
    try:
        return await may_i(client, right)
    except _UNANSWERED:
        return True
