"""A machine is as it was before a node ran on it, however that run ended.

These tests start nodes of their own, so they run before the session's.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_state import MachineState, put_back, why_not_here
from real_node import alone_here, put_back_what_is_noted

HERE = Path(__file__).resolve().parent
CHANGED = ("vm/overcommit_memory", "kernel/panic_on_oops")


@contextlib.contextmanager
def a_run(tools: dict[str, Path], folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process with a node on which a pod runs."""
    names = json.dumps({name: str(path) for name, path in tools.items()})
    command = [sys.executable, str(HERE / "played_run.py"), names, str(folder)]
    path = os.pathsep.join(str(p) for p in (HERE, HERE.parent / "cluster"))
    # Where the tests run in the background, SIGINT is ignored, and so it would be by a child.
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as process:
        signal.signal(signal.SIGINT, ours)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "running\n"
            yield process
        finally:
            process.kill()


def test_all_is_put_back_after_ctrl_c(tools: dict[str, Path], tmp_path: Path) -> None:
    before = MachineState.now()
    with a_run(tools, tmp_path) as process:
        during = before.differences(MachineState.now())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    for kind in ("mounts", "cgroups", "links", "folders"):
        assert any(line.startswith(f"{kind}: ") for line in during), kind
    assert [line for line in during if line.startswith(CHANGED)]
    assert before.differences(MachineState.now()) == []


def test_a_later_run_puts_back_what_a_killed_one_has_left(
    tools: dict[str, Path], tmp_path: Path
) -> None:
    before = MachineState.now()
    with a_run(tools, tmp_path) as process:
        process.kill()
        process.wait()
    assert why_not_here()
    put_back_what_is_noted()
    assert before.differences(MachineState.now()) == []


def test_what_still_starts_in_a_sandbox_of_a_trial_is_ended(tmp_path: Path) -> None:
    """A containerd that is killed while the agent tries it leaves its `runc init` behind."""
    with alone_here():
        before = MachineState.now()
        sandbox = Path("/sys/fs/cgroup/pids") / secrets.token_hex(32)
        sandbox.mkdir()
        with subprocess.Popen(["sleep", "600"]) as process:
            (sandbox / "cgroup.procs").write_text(str(process.pid))
            try:
                put_back(before, tmp_path / "node")
            finally:
                process.kill()
        assert process.returncode == -signal.SIGKILL
        assert not sandbox.exists()


def test_a_change_of_each_kind_is_noticed() -> None:
    now = MachineState.now()
    later = MachineState(
        sysctls={**now.sysctls, "kernel/panic": "17"},
        mounts=[*now.mounts, "/mnt"],
        cgroups=now.cgroups[1:],
        links=[*now.links, "veth0"],
        namespaces=["cni-0"],
        addresses=[*now.addresses, "192.0.2.1/32 on lo"],
        firewall=[*now.firewall, "-A FORWARD -j DROP"],
        firewall_ipv6=[*now.firewall_ipv6, ":KUBE-FIREWALL - [0:0]"],
        folders=[*now.folders, "/opt/nowhere"],
        devices=now.devices[1:],
    )
    assert [line.partition(":")[0] for line in now.differences(later)] == sorted(
        [
            "addresses",
            "cgroups",
            "devices",
            "firewall",
            "firewall_ipv6",
            "folders",
            "kernel/panic",
            "links",
            "mounts",
            "namespaces",
        ]
    )


FIREWALL = """
import subprocess
from machine_state import firewall, put_firewall_back
command = {command!r}
run = lambda *words: subprocess.run([command, *words], check=True)
if {rule!r}:
    run("-A", "INPUT", "-j", "DROP", "-p", "tcp", "--dport", "19213")
before = firewall(command)
run("-t", "nat", "-L")
run("-N", "KUBE-FIREWALL")
run("-A", "OUTPUT", "-j", "KUBE-FIREWALL")
assert firewall(command) != before
put_firewall_back(before, command)
assert firewall(command) == before, firewall(command)
print("kept" if any("19213" in line for line in before) else "empty")
"""


@pytest.mark.parametrize("command", ["iptables", "ip6tables"])
@pytest.mark.parametrize(("rule", "was"), [(False, "empty"), (True, "kept")])
def test_the_firewall_is_put_back_where_it_had_rules_and_where_none(
    rule: bool, was: str, command: str
) -> None:
    """In a network of its own, in which nobody has asked for any table so far."""
    program = FIREWALL.format(rule=rule, command=command)
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == was


@pytest.mark.parametrize("what", ["sysctls", "folders"])
def test_a_state_is_read_back(what: str) -> None:
    now = MachineState.now()
    assert getattr(MachineState.load(now.dump()), what) == getattr(now, what)


SECOND = """
from pathlib import Path
from whole_cluster import WholeCluster
WholeCluster({}, Path("/nowhere"), []).start()
"""


def test_a_second_whole_cluster_takes_no_address_before_its_turn() -> None:
    """The first one's end takes its address away, whoever else believes to have it."""
    before = MachineState.now().addresses
    path = os.pathsep.join(str(p) for p in (HERE, HERE.parent / "cluster"))
    with alone_here():
        second = subprocess.Popen(
            [sys.executable, "-c", SECOND], env={**os.environ, "PYTHONPATH": path}
        )
        try:
            while not waits_for_a_lock(second.pid):
                assert second.poll() is None
                time.sleep(0.02)
            assert MachineState.now().addresses == before
        finally:
            second.kill()
            second.wait()


def waits_for_a_lock(pid: int) -> bool:
    """Tells whether the process waits for a file's lock that another has."""
    lines = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return any(words[1] == "->" and words[5] == str(pid) for words in lines)
