"""The control plane itself: what the cluster tests take for granted."""

import contextlib
import os
import select
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from control_plane import ControlPlane
from kube_api import ApiError, Object, Objects

REVIEW = "authentication.k8s.io/v1"


def pod(name: str, **spec: object) -> Object:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"kept": "yes"}},
        "spec": {"containers": [container], **spec},
    }


def nodes_of(pods: Objects) -> dict[str, str | None]:
    return {one["metadata"]["name"]: one["spec"].get("nodeName") for one in pods}


def test_the_api_server_answers_and_knows_its_users(control_plane: ControlPlane) -> None:
    assert control_plane.api.request("GET", "/version")["gitVersion"].startswith("v1.")
    with contextlib.closing(control_plane.api_for("somebody")) as somebody:
        with pytest.raises(ApiError, match='User "somebody" cannot list') as no:
            somebody.list("Pod")
        assert (no.value.code, no.value.reason) == (403, "Forbidden")


def test_a_service_account_gets_a_token(control_plane: ControlPlane, namespace: str) -> None:
    api = control_plane.api
    api.create({"kind": "ServiceAccount", "metadata": {"name": "agent"}}, namespace)
    path = f"{api.path('ServiceAccount', namespace)}/agent/token"
    wish = {"apiVersion": REVIEW, "kind": "TokenRequest", "spec": {}}
    token = api.request("POST", path, wish)["status"]["token"]
    with contextlib.closing(control_plane.api_with_token(token)) as agent:
        review = agent.create({"apiVersion": REVIEW, "kind": "SelfSubjectReview"})
    assert review["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:agent"


def test_kube_scheduler_binds_what_fits(control_plane: ControlPlane, namespace: str) -> None:
    taint = {"key": "kept", "value": "free", "effect": "NoSchedule"}
    control_plane.create_fake_node("small", {"cpu": "1"}, labels={"size": "small"})
    control_plane.create_fake_node("tainted", taints=[taint])
    control_plane.create_pods(
        namespace, [pod("a"), pod("b", nodeSelector={"size": "small"}), pod("c", schedulerName="x")]
    )
    scheduler = control_plane.start_scheduler()
    found = control_plane.api.wait_for(
        lambda pods: (now := nodes_of(pods))["a"] and now["b"] and now,
        "Pod",
        namespace,
        timeout_s=10,
    )
    assert found == {"a": "small", "b": "small", "c": None}
    # It logs a binding after the API server has told everybody.
    scheduler.wait_ready(lambda: "Successfully bound" in scheduler.log.read_text())


def test_kube_scheduler_takes_a_configuration(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.create_fake_node("node")
    control_plane.create_pods(namespace, [pod("a"), pod("b", schedulerName="other")])
    scheduler = control_plane.start_scheduler({"profiles": [{"schedulerName": "other"}]})
    control_plane.api.wait_for(
        lambda pods: nodes_of(pods) == {"a": None, "b": "node"}, "Pod", namespace, timeout_s=10
    )
    scheduler.stop()
    assert not scheduler.running


def test_a_binding_with_annotations_is_one_event(
    control_plane: ControlPlane, namespace: str
) -> None:
    api = control_plane.api
    control_plane.create_fake_node("node")
    one = api.create(pod("one"), namespace)
    before = one["metadata"]["resourceVersion"]
    api.bind(one, "node", {"weft.dev/placement": "{}"}, resourceVersion=before)
    with contextlib.closing(api.watch("Pod", namespace, since=before)) as events:
        first = next(events)
    assert first.type == "MODIFIED"
    assert first.object["spec"]["nodeName"] == "node"
    assert first.object["metadata"]["annotations"] == {"kept": "yes", "weft.dev/placement": "{}"}
    with pytest.raises(ApiError, match="already assigned") as again:
        api.bind(one, "node")
    assert again.value.code == 409


def test_after_a_compaction_an_old_watch_is_gone(
    control_plane: ControlPlane, namespace: str
) -> None:
    """And a continued list too; what there is now can still be listed and watched."""
    api = control_plane.api
    control_plane.create_pods(namespace, [pod("a"), pod("b")])
    listed = api.request("GET", api.path("Pod", namespace), query={"limit": "1"})
    api.create(pod("c"), namespace)
    control_plane.compact_etcd()
    with pytest.raises(ApiError) as gone:
        list(api.watch("Pod", namespace, since=listed["metadata"]["resourceVersion"]))
    assert (gone.value.code, gone.value.reason) == (410, "Expired")
    with pytest.raises(ApiError) as gone:
        api.list("Pod", namespace, **{"continue": listed["metadata"]["continue"]})
    assert gone.value.code == 410
    assert sorted(nodes_of(api.list("Pod", namespace))) == ["a", "b", "c"]


@pytest.mark.parametrize("gracefully", [True, False], ids=["gracefully", "killed"])
def test_a_restart_keeps_what_there_is(
    control_plane: ControlPlane, namespace: str, gracefully: bool
) -> None:
    """And someone who waits meanwhile goes on waiting, and sees what comes afterwards."""
    api = control_plane.api
    api.create(pod("before"), namespace)
    seen: list[object] = []
    waiting = threading.Thread(
        target=lambda: seen.append(
            api.wait_for(lambda pods: len(pods) == 2 and nodes_of(pods), "Pod", namespace)
        )
    )
    waiting.start()
    control_plane.restart_apiserver(gracefully=gracefully)
    api.create(pod("after"), namespace)
    waiting.join()
    assert seen == [{"before": None, "after": None}]


def test_a_paused_server_is_silent_and_then_goes_on(
    control_plane: ControlPlane, namespace: str
) -> None:
    control_plane.api_server.pause()
    with pytest.raises(TimeoutError):
        control_plane.api.request("GET", "/version", timeout_s=0.2)
    control_plane.api_server.resume()
    assert control_plane.api.list("Pod", namespace) == []


def test_the_cluster_is_empty_whatever_the_test_before_left(
    control_plane: ControlPlane, namespace: str
) -> None:
    assert control_plane.api.list("Node") == []
    assert control_plane.api.list("Pod") == []
    assert control_plane.schedulers == []


def test_servers_end_with_the_tests_that_started_them(tmp_path: Path) -> None:
    """Even when these are killed and can clean up nothing."""
    script = """
        import os, signal, sys
        from pathlib import Path
        from processes import Server
        server = Server(["/bin/sleep", "60"], Path(sys.argv[1]))
        server.start()
        print(server.pid, flush=True)
        sys.stdin.readline()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "log")],
        cwd=Path(__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        assert tests.stdout is not None
        server = os.pidfd_open(int(tests.stdout.readline()))
        try:
            tests.communicate("now\n")
            assert select.select([server], [], [], 10)[0], "the server outlived its tests"
        finally:
            os.close(server)
