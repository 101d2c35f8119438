"""`weft status` beside a scheduler that leads, on the real API server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from control_plane import ControlPlane
from weft_process import all_bound, nodes, pod, weft


def status(plane: ControlPlane) -> tuple[int, Any]:
    kubeconfig = str(plane.kubeconfig_for("weft", "system:masters"))
    command = [sys.executable, "-m", "weft.cli.main", "status", "--kubeconfig", kubeconfig]
    done = subprocess.run([*command, "-o", "json"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_who_leads_and_why_pods_wait(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nodes(control_plane, 1)
    api = control_plane.api
    with weft(control_plane, tmp_path) as process:
        process.until("leading, term")
        asks = [
            pod(name, "weft", {"elasticgpu.io/gpu-memory": mib})
            for name, mib in (("fits", 4_000), ("large", 90_000))
        ]
        control_plane.create_pods(namespace, asks)
        api.wait_for(lambda pods: all_bound(1)(pods[:1]), "Pod", namespace, timeout_s=30)

        def said(pods: list[Any]) -> bool:
            conditions = [c for one in pods for c in one["status"].get("conditions", ())]
            return any(c.get("reason") == "Unschedulable" for c in conditions)

        api.wait_for(said, "Pod", namespace, timeout_s=30)
        code, found = status(control_plane)
        assert (code, found["leader"]["leads"], found["leader"]["lease"]) == (
            0,
            True,
            "kube-system/weft",
        )
        (pending,) = [group for group in found["pods"] if group["state"] == "pending"]
        assert (pending["count"], pending["oldest"]) == (1, f"{namespace}/large")
        (large,) = [one for one in api.list("Pod", namespace) if one["metadata"]["name"] == "large"]
        assert pending["reason"] == large["status"]["conditions"][0]["message"]
