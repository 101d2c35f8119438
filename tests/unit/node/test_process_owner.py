"""Owners of processes: cgroups as kubelets, runtimes and both versions of cgroups write them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.node.agent.process_owner import ProcessOwner, name_of, owner_in, owner_of

UID = "0c7e58a1-5b1f-4d0e-9f0a-2b9d8d1f7c11"
SLICE = UID.replace("-", "_")
STATIC = "3f0a6f3fa6a1d6d2c0c1b5e7f9a8b7c6"
ID = "4f" * 32
OTHER = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
SYSTEMD = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice"
OURS = ProcessOwner(UID, ID)

V1 = """12:pids:/kubepods/burstable/pod{uid}/{id}
5:cpu,cpuacct:/kubepods/burstable/pod{uid}/{id}
1:name=systemd:/kubepods/burstable/pod{uid}/{id}
0::/
"""


@pytest.mark.parametrize(
    ("text", "owner"),
    [
        (V1.format(uid=UID, id=ID), OURS),
        # a hybrid: v1's controllers tell nothing here, v2's line does
        (f"3:devices:/\n0::/kubepods/besteffort/pod{UID}/{ID}\n", OURS),
        (f"0::{SYSTEMD}/cri-containerd-{ID}.scope\n", OURS),
        (f"0::{SYSTEMD}/crio-{ID}.scope\n", OURS),
        (f"0::{SYSTEMD}/docker-{ID}.scope\n", OURS),
        (f"0::{SYSTEMD}/crio-{ID}.scope/container\n", OURS),
        (f"0::/kubepods/pod{UID}/crio-{ID}\n", OURS),  # guaranteed, cri-o with cgroupfs
        (f"0::/kubepods/pod{UID}/kata_{ID}\n", OURS),
        (f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope\n", OURS),
        # a kubelet with a root of its own (kind), and one inside a container
        (
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
            f"kubelet-kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope\n",
            OURS,
        ),
        (f"11:memory:/docker/{'ab' * 32}/kubelet/kubepods/burstable/pod{UID}/{ID}\n", OURS),
        # relative to the cgroup namespace of whoever reads
        (f"0::/../../../burstable/pod{UID}/{ID}\n", OURS),
        (f"0::/../../kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope\n", OURS),
        (f"0::/kubepods/pod{UID}\n", ProcessOwner(UID)),
        (f"0::{SYSTEMD}/crio-conmon-{ID}.scope\n", OURS),
        (f"0::/kubepods/burstable/pod{STATIC}/{ID}\n", ProcessOwner(STATIC, ID)),
        ("0::/system.slice/nvidia-mps.service\n", None),
        ("0::/user.slice/user-0.slice/session-1.scope\n", None),
        (f"0::/system.slice/docker-{ID}.scope\n", None),  # docker's own, of no pod
        ("0::/podruntime.slice/kubelet.service\n", None),
        ("0::/machine.slice/podman-12.scope\n", None),
        ("0::/\n", None),
        ("", None),
    ],
)
def test_pod_and_container_of_a_cgroup(text: str, owner: ProcessOwner | None) -> None:
    assert owner_in(text) == owner


def test_a_container_cannot_put_its_processes_on_another_pods_account() -> None:
    below = f"0::{SYSTEMD}/cri-containerd-{ID}.scope/kubepods/pod{OTHER}/{'ab' * 32}\n"
    assert owner_in(below) == OURS


@given(st.text())
def test_whatever_stands_there_is_no_error(text: str) -> None:
    owner = owner_in(text)
    assert owner is None or len(owner.pod_uid) >= 32


def test_a_process_is_looked_up_below_the_given_root(tmp_path: Path) -> None:
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "cgroup").write_text(V1.format(uid=UID, id=ID))
    (tmp_path / "77" / "comm").write_text("python3\n")
    assert owner_of(tmp_path, 77) == OURS
    assert name_of(tmp_path, 77) == "python3"


def test_one_that_ended_is_nobodys(tmp_path: Path) -> None:
    assert owner_of(tmp_path, 78) is None
    assert name_of(tmp_path, 78) == ""
