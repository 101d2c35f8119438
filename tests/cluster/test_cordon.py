"""A cordon holds from the moment it is there: pods made right after it do not go to the node."""

import time
from pathlib import Path

from control_plane import ControlPlane
from weft_process import all_bound, nodes, pod, weft

TRIES = 16
GAPS_S = (0.0, 0.002, 0.005, 0.01, 0.02)
ASKS: dict[str, object] = {"elasticgpu.io/gpu-memory": 100}


def test_no_pod_made_after_a_cordon_goes_to_the_node(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    nodes(control_plane, 1)
    api = control_plane.api
    late = []
    with weft(control_plane, tmp_path):
        for number in range(TRIES):
            # Bound before the cordon: so the process has seen the node open.
            before, after = f"before-{number}", f"after-{number}"
            control_plane.create_pods(namespace, [pod(before, "weft", ASKS)])
            api.wait_for(all_bound(number + 1), "Pod", namespace, timeout_s=20)
            api.patch("Node", "node-0", {"spec": {"unschedulable": True}})
            time.sleep(GAPS_S[number % len(GAPS_S)])
            control_plane.create_pods(namespace, [pod(after, "weft", ASKS)])
            api.wait_for(
                lambda pods, name=after: any(  # type: ignore[misc]
                    one["metadata"]["name"] == name
                    and (one["spec"].get("nodeName") or one["status"].get("conditions"))
                    for one in pods
                ),
                "Pod",
                namespace,
                timeout_s=20,
            )
            if api.get("Pod", after, namespace)["spec"].get("nodeName"):
                late.append(number)
            api.delete("Pod", after, namespace)
            api.patch("Node", "node-0", {"spec": {"unschedulable": False}})
        assert not late
