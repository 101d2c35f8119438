"""Installs and applies what `make kind-demo` does, on a cluster whose nodes say nothing of GPUs:
that part of it which needs no kind."""

import re

from exactness import record_of
from real_node import NAME
from test_two_commands import runs
from whole_cluster import LABELS, ROOT, WholeCluster

IMAGE = "registry.example/weft-gpu"


def test_the_commands_after_the_image_lead_to_a_pod_that_tells_its_gpu(
    cluster: WholeCluster,
) -> None:
    """Only the image's name and the runtime's socket are this machine's."""
    text = (ROOT / "README.md").read_text()
    *_, install, apply = re.findall(r"```sh\n(kind create.*?)```", text, re.DOTALL)[0].splitlines()
    assert "--set image.repository=weft-gpu " in install
    own = f"image.repository={IMAGE} --set agent.criSocket={cluster.node.containerd.socket}"
    cluster.api.patch("Node", NAME, {"metadata": {"labels": dict.fromkeys(LABELS)}})
    try:
        cluster.shell(install.replace("image.repository=weft-gpu", own))
        cluster.shell(apply)
        (share,) = cluster.api.wait_for(runs("share"), "Pod", "default", timeout_s=120)
        cluster.shell("kubectl wait --for=condition=Ready pod/share --timeout=60s")
        seen = cluster.node.inside(share, "cuda").env["NVIDIA_VISIBLE_DEVICES"]
        assert seen == record_of(share).cards[0].uuid
        assert seen.startswith("GPU-")
    finally:
        cluster.shell("kubectl delete -f examples/weft/pods.yaml --ignore-not-found")
        cluster.shell("helm uninstall weft --namespace weft-system --ignore-not-found")
        cluster.api.wait_for(lambda pods: not pods, "Pod", "weft-system", timeout_s=120)
        cluster.api.patch("Node", NAME, {"metadata": {"labels": LABELS}})
