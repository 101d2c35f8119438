"""The harness itself: a pod's container runs on the real kubelet, and says what it sees."""

from kube_api import Object
from real_node import RealNode


def pod(name: str, **spec: object) -> Object:
    """A pod with one container, or with what `spec` says."""
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "main"}], **spec}}


def test_a_container_runs_and_says_what_it_sees(node: RealNode, namespace: str) -> None:
    main = {"name": "main", "env": [{"name": "COLOUR", "value": "dark blue"}]}
    (made,) = node.run([pod("one", containers=[main])], namespace)
    assert made["status"]["phase"] == "Running"
    found = node.inside(made, "main")
    assert found.env["COLOUR"] == "dark blue"
    assert found.devices["/dev/null"].may_open
    assert found.gpus() == {}
    assert "/proc" in found.mounts


def test_an_init_container_a_sidecar_and_two_containers(node: RealNode, namespace: str) -> None:
    made = pod(
        "several",
        initContainers=[{"name": "first"}, {"name": "beside", "restartPolicy": "Always"}],
        containers=[{"name": "one"}, {"name": "two"}],
    )
    (made,) = node.run([made], namespace)
    for container in ("first", "beside", "one", "two"):
        assert node.inside(made, container).env["HOSTNAME"] == "several"
    assert node.execute(made, "two", "hostname") == "several\n"
    assert sorted(node.containers(made)) == ["beside", "first", "one", "two"]


def test_containers_go_on_while_kubelet_and_containerd_are_away(
    node: RealNode, namespace: str
) -> None:
    (before,) = node.run([pod("one")], namespace)
    node.restart_containerd(nri=False)
    node.restart_kubelet()
    node.restart_containerd()
    node.run([pod("two")], namespace)
    assert node.execute(before, "main", "hostname") == "one\n"
    pods = node.api.list("Pod", namespace)
    assert [s["restartCount"] for p in pods for s in p["status"]["containerStatuses"]] == [0, 0]
