"""Runs a command's queries to a cluster's API server; an error becomes one line on stderr."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from weft.model.errors import BadInputError, WeftError

if TYPE_CHECKING:
    from weft.kube.client import ApiClient, Endpoint

T = TypeVar("T")


def endpoint_of(kubeconfig: Path | None, context: str) -> "Endpoint":
    """Return the API server that --kubeconfig and --context name."""
    from weft.kube.config import load

    return load(context, paths=(kubeconfig,) if kubeconfig else ())


def answer(
    kubeconfig: Path | None, context: str, question: "Callable[[ApiClient], Awaitable[T]]"
) -> T:
    """Run `question` with a client and return its result; `BadInputError` names the cluster on
    failure."""
    from weft.kube.client import ApiClient, ClientOptions

    endpoint = endpoint_of(kubeconfig, context)

    async def ask() -> T:
        async with ApiClient(endpoint, ClientOptions(attempts=2)) as client:
            return await question(client)

    try:
        return asyncio.run(ask())
    except BadInputError:
        raise
    except WeftError as error:
        problem = f"{error}; name another cluster with --kubeconfig and --context, or run "
        raise BadInputError(endpoint.url, problem + "weft doctor") from error
