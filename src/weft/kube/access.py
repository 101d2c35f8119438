"""Asks the API server which user a token belongs to, and what that user may do.

A token is issued for one audience: a token issued for Weft is refused by every other server.
"""

from typing import NamedTuple
from urllib.parse import quote

import msgspec

from weft.kube.client import ApiClient
from weft.model.manifest import Api

LIFETIME_S = 600
"""Seconds for which requested tokens are valid: the shortest time that the API server allows."""

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
OWN_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class User(Api, frozen=True):
    """The user to whom the API server says that a token belongs."""

    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(Api, frozen=True):
    authenticated: bool = False
    user: User = User()
    audiences: list[str] | None = None


class _TokenReview(Api, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(Api, frozen=True):
    allowed: bool = False


class _AccessReview(Api, frozen=True):
    status: _AccessStatus = _AccessStatus()


class _MadeStatus(Api, frozen=True):
    token: str = ""


class _Made(Api, frozen=True):
    status: _MadeStatus = _MadeStatus()


class ResourceRight(NamedTuple):
    """The right to use a verb on a resource (`pods`, `pods/proxy`), in all namespaces if
    `namespace` is "", on all objects if `name` is ""."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"{self.verb} {self.resource}{name}" + (
            f" in {self.namespace}" if self.namespace else ""
        )


class Account(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


async def make_token(client: ApiClient, account: Account, audience: str) -> str:
    """Return a short-lived token of this service account, good for this audience alone; `ApiError`
    if the caller may not `create` its `serviceaccounts/token`."""
    namespace, name = (quote(part, safe="") for part in account)
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    spec = {"audiences": [audience], "expirationSeconds": LIFETIME_S}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    token = await client.call("POST", path, msgspec.json.encode(body))
    return msgspec.json.decode(token, type=_Made).status.token


async def user_of(client: ApiClient, token: str, audience: str) -> User | None:
    """Return the token's user; None for a token that is invalid, or was issued for another
    audience."""
    spec = {"token": token, "audiences": [audience]}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
    answer = await client.call("POST", TOKEN_REVIEWS, msgspec.json.encode(body))
    status = msgspec.json.decode(answer, type=_TokenReview).status
    # A server without audiences names none: then the token was not issued for Weft.
    good = status.authenticated and status.user.username and audience in (status.audiences or ())
    return status.user if good else None


async def may_get(client: ApiClient, user: User, path: str) -> bool:
    """Return True if RBAC, or another authorizer, lets the user `get` this path
    (nonResourceURLs)."""
    return await _may(client, user, {"nonResourceAttributes": {"path": path, "verb": "get"}})


async def may_list_pods(client: ApiClient, user: User, namespace: str) -> bool:
    """Return True if the user may list the pods of this namespace; "" is all namespaces."""
    attributes = {"verb": "list", "group": "", "resource": "pods", "namespace": namespace}
    return await _may(client, user, {"resourceAttributes": attributes})


async def _may(client: ApiClient, user: User, asked: dict[str, dict[str, str]]) -> bool:
    spec = {
        "user": user.username,
        "uid": user.uid,
        "groups": user.groups or [],
        "extra": user.extra or {},
        **asked,
    }
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = await client.call("POST", ACCESS_REVIEWS, msgspec.json.encode(body))
    return msgspec.json.decode(answer, type=_AccessReview).status.allowed


async def may_i(client: ApiClient, right: ResourceRight) -> bool:
    """Return True if the caller has this right; any authenticated user may ask."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": right.namespace,
        "name": right.name,
    }
    spec = {"resourceAttributes": attributes}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = await client.call("POST", OWN_REVIEWS, msgspec.json.encode({**body, "spec": spec}))
    return msgspec.json.decode(answer, type=_AccessReview).status.allowed
