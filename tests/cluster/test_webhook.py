"""The webhook in the policy's place (before Kubernetes 1.36), asked by the real API server."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking_pods import OPTED_IN, check_agreement, pod, scheduler_of
from control_plane import HOST, ControlPlane
from processes import Server, free_ports

from weft.cluster.admission.webhook import PATH, webhook_configuration
from weft.model.annotations import SCHEDULE, SCHEDULE_ENABLED

VERSION = "admissionregistration.k8s.io/v1"
ASKS = pod("asks", labels={"genius/gpu-number": "1"})


@pytest.fixture
def webhook(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Server]:
    """The process, and an API server that knows it and that reaches it here."""
    authority = control_plane.authority
    pair = authority.server("weft-webhook")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "weft.cli.main", "webhook", "--port", str(port)]
    files = ["--certificate-file", pair.certificate, "--key-file", pair.key]
    process = Server([*command, *files, "--address", HOST], tmp_path / "webhook.log")
    process.start()
    process.wait_ready(lambda: "webhook on" in process.log.read_text())
    made = webhook_configuration(
        "weft-system", "weft-webhook", authority.pair.certificate.read_bytes()
    )
    (hook,) = made["webhooks"]  # type: ignore[misc]
    del hook["clientConfig"]["service"]
    hook["clientConfig"]["url"] = f"https://{HOST}:{port}{PATH}"
    api = control_plane.api
    meta = {"name": OPTED_IN, "labels": {SCHEDULE: SCHEDULE_ENABLED}}
    api.create({"kind": "Namespace", "metadata": meta})
    api.create(made)
    yield process
    process.kill()
    api.delete("MutatingWebhookConfiguration", "weft-schedule", version=VERSION)
    control_plane.remove_namespace(OPTED_IN)


def test_it_says_what_the_dialects_say_and_nobody_waits_for_it(
    control_plane: ControlPlane, namespace: str, webhook: Server
) -> None:
    api = control_plane.api
    path = api.path("Pod", OPTED_IN)
    for _ in range(600):  # the API server hears of it a moment later
        if scheduler_of(api, path, ASKS) == "weft":
            break
    check_agreement(api, namespace, seed=17, count=150)
    webhook.stop()
    assert scheduler_of(api, path, ASKS) == "default-scheduler"
    webhook.start()
    webhook.wait_ready(lambda: webhook.log.read_text().count("webhook on") == 2)
    assert scheduler_of(api, path, ASKS) == "weft"
