"""Where the binaries come from, and what is said where they cannot be had."""

import os
from pathlib import Path

import binaries
import pytest
from go_tools import NoBinariesError


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No assets, an empty cache, and no Go."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("WEFT_KUBERNETES_VERSION", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def program(path: Path, text: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_assets_go_first_and_the_cache_fills_their_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assets of envtest have no kube-scheduler."""
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assets = {name: program(tmp_path / "assets" / name) for name in ("etcd", "kube-apiserver")}
    cached = {name: program(binaries.cache() / name) for name in ("etcd", "kube-scheduler")}
    found = binaries.find_or_build(pytest.fail)
    assert found == {**assets, "kube-scheduler": cached["kube-scheduler"]}


def test_assets_without_an_api_server_are_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(NoBinariesError, match=r"KUBEBUILDER_ASSETS=.* unset it"):
        binaries.find()


def test_without_go_it_says_what_to_install() -> None:
    with pytest.raises(NoBinariesError, match=r"no Go to build with.*make cluster-tools"):
        binaries.find_or_build(pytest.fail)


def test_what_is_built_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    wanted = f'echo "$@" >> {log}; while [ $# -gt 2 ]; do shift; done; echo > "$1"'
    go = program(tmp_path / "bin" / "go", f"{wanted}; /bin/chmod +x $1")
    told: list[str] = []
    found = binaries.find_or_build(told.append)
    assert sorted(found) == ["etcd", "kube-apiserver", "kube-scheduler"]
    assert all(path.parent == binaries.cache() for path in found.values())
    assert sorted(os.listdir(binaries.cache())) == [".lock", *sorted(found)]
    assert [text.partition(":")[0] for text in told if text.startswith("built")] == [
        "built etcd",
        "built kube-apiserver",
        "built kube-scheduler",
    ]
    assert f"gitVersion={binaries.versions()['kube-apiserver']}" in log.read_text()
    go.unlink()
    assert binaries.find_or_build(pytest.fail) == found


def test_what_go_complains_of_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    program(tmp_path / "bin" / "go", "echo 'go.mod requires go >= 1.26' >&2; exit 1")
    with pytest.raises(NoBinariesError, match=r"etcd \(exit 1\):\ngo.mod requires go >="):
        binaries.find_or_build(lambda _: None)
    assert os.listdir(binaries.cache()) == [".lock"]


def test_another_kubernetes_is_chosen_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = binaries.cache(), binaries.versions()["kube-scheduler"]
    monkeypatch.setenv("WEFT_KUBERNETES_VERSION", "v1.37.1")
    assert binaries.versions()["kube-scheduler"] == "v1.37.1"
    assert binaries.cache() != pinned[0]
    monkeypatch.setenv("WEFT_KUBERNETES_VERSION", "1.2.3")
    with pytest.raises(NoBinariesError, match=r"WEFT_KUBERNETES_VERSION=1\.2\.3.*1\.37\.1"):
        binaries.cache()
