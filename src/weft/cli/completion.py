"""Shell completion after <TAB>: policies, and a cluster's namespaces and pods.

A shell shows no errors here, so a cluster that does not answer gives no suggestions."""

from typing import Any

import msgspec

ANSWER_WITHIN_S, MOST = 2.0, 500


class _Meta(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta


class _Listed(msgspec.Struct):
    items: list[_Named]


def policies(incomplete: str) -> list[tuple[str, str]]:
    """Return the policies whose names begin with `incomplete`, as (name, summary)."""
    from weft.core.policies.catalog import BUILT_IN

    found = [(policy.name, policy.summary) for policy in BUILT_IN]
    return sorted(each for each in found if each[0].startswith(incomplete))


def pods(ctx: Any, incomplete: str) -> list[str]:
    """Return the namespaces that begin with `incomplete`, with a slash; after a slash, the
    namespace's pods as NAMESPACE/NAME."""
    namespace, slash, begun = incomplete.partition("/")
    kubeconfig, context = ctx.params.get("kubeconfig"), ctx.params.get("context") or ""
    path = f"/api/v1/namespaces/{namespace}/pods" if slash else "/api/v1/namespaces"
    names = _names(path, kubeconfig, context)
    if slash:
        return [f"{namespace}/{name}" for name in names if name.startswith(begun)]
    return [f"{name}/" for name in names if name.startswith(incomplete)]


def _names(path: str, kubeconfig: Any, context: str) -> list[str]:
    from weft.cli.cluster_question import answer
    from weft.model.errors import WeftError

    async def listed(client: Any) -> bytes:
        query = {"limit": str(MOST)}
        body: bytes = await client.call("GET", path, query=query, timeout_s=ANSWER_WITHIN_S)
        return body

    try:
        body = answer(kubeconfig, context, listed)
        return [each.metadata.name for each in msgspec.json.decode(body, type=_Listed).items]
    except (WeftError, OSError, msgspec.DecodeError):
        return []
