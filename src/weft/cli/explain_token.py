"""The token by which the scheduler knows that whoever asks it to explain a pod may.

Behind the API server's proxy nobody can tell who asks. So the command has the API server make a
token that proves it: of a service account that may read explanations, for somebody who may make its
tokens.
"""

from typing import NamedTuple

from weft.cluster.scheduler.permission import ACCOUNT, AUDIENCE, TOKEN_HEADER
from weft.kube.access import Account, make_token
from weft.kube.client import ApiClient
from weft.kube.errors import ApiError


class ExplainToken(NamedTuple):
    """Headers of the question; `lacking` says why there are none."""

    headers: dict[str, str]
    lacking: str = ""


NO_PASS = ExplainToken({})


async def explain_token(client: ApiClient, namespace: str) -> ExplainToken:
    """For a scheduler in this namespace. Without one it may still answer: the door may be open."""
    account = Account(namespace, ACCOUNT)
    try:
        return ExplainToken({TOKEN_HEADER: await make_token(client, account, AUDIENCE)})
    except ApiError as error:
        return ExplainToken({}, f"no token of the service account {account} was made: {error}")
