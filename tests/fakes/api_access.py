"""Tokens, and what their owners may read, of the fake API server."""

import base64
import itertools
import re
from typing import Any

import msgspec

from fakes.api_http import Request
from fakes.api_store import ApiRefusal, Json

_TOKEN = re.compile(r"/api/v1/namespaces/([^/]+)/serviceaccounts/([^/]+)/token")
_TOKEN_REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS_REVIEW = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_OWN_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class TokenReviewer:
    """Makes and reviews tokens of service accounts. `accounts` are those there are, `rights` which
    user may read what begins with which path, `listers` which may list pods of which namespace (""
    is all), `denied` what nobody may: (verb, resource). `ended` are tokens that have expired."""

    def __init__(self) -> None:
        self.accounts: set[tuple[str, str]] = set()
        self.rights: set[tuple[str, str]] = set()
        self.listers: set[tuple[str, str]] = set()
        self.denied: set[tuple[str, str]] = set()
        self.ended: set[str] = set()
        self._tokens: dict[str, tuple[str, list[str]]] = {}
        self._numbers = itertools.count(1)

    def token(self, user: str, *audiences: str) -> str:
        """A good token of this user."""
        claims = msgspec.json.encode({"aud": audiences, "sub": user})
        parts = (b"{}", claims, b"%d" % next(self._numbers))
        made = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)
        self._tokens[made] = (user, list(audiences))
        return made

    def answer(self, request: Request) -> Json | None:
        """The answer to such a request; None where it is another."""
        account = _TOKEN.fullmatch(request.path)
        if request.method != "POST" or not (
            account or request.path in (_TOKEN_REVIEW, _ACCESS_REVIEW, _OWN_REVIEW)
        ):
            return None
        spec = msgspec.json.decode(request.body)["spec"]
        if account:
            return self._make(account[1], account[2], spec)
        if request.path == _TOKEN_REVIEW:
            return {"kind": "TokenReview", "status": self._review(spec)}
        if request.path == _OWN_REVIEW:
            asked = spec["resourceAttributes"]
            name = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
            return {"status": {"allowed": (asked["verb"], name) not in self.denied}}
        if "resourceAttributes" in spec:
            asked = spec["resourceAttributes"]
            assert (asked["verb"], asked["resource"]) == ("list", "pods")
            allowed = not {(spec["user"], ""), (spec["user"], asked["namespace"])}.isdisjoint(
                self.listers
            )
            return {"kind": "SubjectAccessReview", "status": {"allowed": allowed}}
        path = spec["nonResourceAttributes"]["path"]
        allowed = any(user == spec["user"] and path.startswith(to) for user, to in self.rights)
        return {"kind": "SubjectAccessReview", "status": {"allowed": allowed}}

    def _make(self, namespace: str, name: str, spec: dict[str, Any]) -> Json:
        if (namespace, name) not in self.accounts:
            raise ApiRefusal(404, "NotFound", f'serviceaccounts "{name}" not found')
        token = self.token(f"system:serviceaccount:{namespace}:{name}", *spec["audiences"])
        return {"kind": "TokenRequest", "status": {"token": token}}

    def _review(self, spec: dict[str, Any]) -> Json:
        user, audiences = self._tokens.get(spec["token"], ("", []))
        both = [audience for audience in audiences if audience in spec["audiences"]]
        if not both or spec["token"] in self.ended:
            return {"user": {}, "error": "[invalid bearer token]"}
        return {"authenticated": True, "user": {"username": user}, "audiences": both}
