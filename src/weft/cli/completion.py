"""Policies, and a cluster's namespaces and pods, which the shell offers after <TAB>.

A shell shows no errors here: whatever cannot be asked is not offered.
"""

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
    """Names of policies that begin so, with their summaries."""
    from weft.core.policies.catalog import BUILT_IN

    found = [(policy.name, policy.summary) for policy in BUILT_IN]
    return sorted(each for each in found if each[0].startswith(incomplete))


def pods(ctx: Any, incomplete: str) -> list[str]:
    """Namespaces that begin so, with a slash; after it, this namespace's pods."""
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
