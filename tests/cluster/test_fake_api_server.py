"""The fake API server of `weft.testing` behaves as the real one: the same table, played here."""

import pytest
from control_plane import ControlPlane

from fakes.api_behaviours import BEHAVIOURS, Behaviour, check
from weft.kube.client import ApiClient
from weft.kube.config import load


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
async def test_the_real_api_server_behaves_as_the_fake(
    control_plane: ControlPlane, namespace: str, behaviour: Behaviour
) -> None:
    path = control_plane.kubeconfig_for("admin", "system:masters")

    async with ApiClient(load(paths=[path])) as client:
        assert await check(client, behaviour, namespace) == ""
