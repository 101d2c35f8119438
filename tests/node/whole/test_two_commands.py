"""The tutorial's two commands, typed as it writes them: from an empty control plane to a pod that
runs with its share. What runs here first finds a cluster without Weft."""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

from exactness import is_exact, record_of
from kube_api import Objects
from whole_cluster import WholeCluster, commands

MOST_S = 60.0


def runs(name: str) -> Callable[[Objects], Objects]:
    """The pod of this name once it runs."""

    def so(pods: Objects) -> Objects:
        return [
            one
            for one in pods
            if one["metadata"]["name"] == name and one["status"].get("phase") == "Running"
        ]

    return so


def test_two_commands_lead_to_a_shared_gpu(cluster: WholeCluster, tmp_path: Path) -> None:
    install, apply = commands()
    assert (install.split()[:2], apply.split()[:2]) == (["helm", "install"], ["kubectl", "apply"])
    began = time.monotonic()
    cluster.shell(f"{install} --values {cluster.values(tmp_path)}")
    cluster.shell(apply)
    (share,) = cluster.api.wait_for(runs("share"), "Pod", "default", timeout_s=120)
    took = time.monotonic() - began
    sys.stderr.write(f"\nfrom helm install to the first pod with a share: {took:.1f} s\n")
    is_exact(cluster.node, cluster.gpus, share, record_of(share))
    assert record_of(share).cards[0].memory_mib == 4096
    assert took <= MOST_S
    tested = cluster.shell("helm test weft --namespace weft-system --timeout 120s")
    assert re.search(r"^Phase: +Succeeded$", tested, re.MULTILINE), tested
    cluster.shell("kubectl delete -f examples/weft/pods.yaml")
    uninstall = "helm uninstall weft --namespace weft-system"
    cluster.shell(uninstall)
    cluster.api.wait_for(lambda pods: not pods, "Pod", "weft-system", timeout_s=120)
    leases = cluster.shell("kubectl -n kube-system get lease -o name").split()
    assert "lease.coordination.k8s.io/weft" not in leases, "a scheduler made its Lease again"
    cluster.shell(f"{install} --values {cluster.values(tmp_path)}")  # nothing is in its way
    cluster.shell(uninstall)
    cluster.api.wait_for(lambda pods: not pods, "Pod", "weft-system", timeout_s=120)
