"""A machine is as it was before a node ran on it, however that run ended.

These tests start nodes of their own, so they run before the session's.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_state import MachineState, why_not_here
from real_node import put_back_what_is_noted

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


def test_a_change_of_each_kind_is_noticed() -> None:
    now = MachineState.now()
    later = MachineState(
        sysctls={**now.sysctls, "kernel/panic": "17"},
        mounts=[*now.mounts, "/mnt"],
        cgroups=now.cgroups[1:],
        links=[*now.links, "veth0"],
        namespaces=["cni-0"],
        firewall=[*now.firewall, "-A FORWARD -j DROP"],
        folders=[*now.folders, "/opt/nowhere"],
        devices=now.devices[1:],
    )
    assert [line.partition(":")[0] for line in now.differences(later)] == sorted(
        [
            "cgroups",
            "devices",
            "firewall",
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
run = lambda *words: subprocess.run(["iptables", *words], check=True)
if {rule!r}:
    run("-A", "INPUT", "-j", "DROP", "-s", "192.0.2.1")
before = firewall()
run("-t", "nat", "-L")
run("-N", "KUBE-FIREWALL")
run("-A", "OUTPUT", "-j", "KUBE-FIREWALL")
assert firewall() != before
put_firewall_back(before)
assert firewall() == before, firewall()
print("kept" if any("192.0.2.1" in line for line in before) else "empty")
"""


@pytest.mark.parametrize(("rule", "was"), [(False, "empty"), (True, "kept")])
def test_the_firewall_is_put_back_where_it_had_rules_and_where_none(rule: bool, was: str) -> None:
    """In a network of its own, in which nobody has asked for any table so far."""
    program = FIREWALL.format(rule=rule)
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
