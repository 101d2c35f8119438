"""`weft extender config`, routes and their profiles."""

from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from weft.cli.extender import extender_app
from weft.cluster.extender.routes import default_routes, route_profiles
from weft.cluster.extender.scheduler_config import CHOICES, SchedulerConfigOptions, configuration
from weft.core.policies.catalog import built_in
from weft.model import BadInputError


def printed(*words: str) -> dict[str, Any]:
    result = CliRunner().invoke(extender_app, ["config", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = yaml.safe_load(result.stdout)
    return found


def managed(found: dict[str, Any]) -> dict[str, bool]:
    (entry,) = found["extenders"]
    return {one["name"]: one["ignoredByScheduler"] for one in entry.get("managedResources", [])}


def test_one_entry_binds_for_all_dialects() -> None:
    found = printed("--dialects", "elastic,gpushare,alnair")
    (entry,) = found["extenders"]
    assert found["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert entry["urlPrefix"] == "http://127.0.0.1:39999/weft"
    for verb in ("filter", "prioritize", "bind", "preempt"):
        assert entry[f"{verb}Verb"] == verb
    assert entry["nodeCacheCapable"] is True
    assert "enableHTTPS" not in entry
    names = managed(found)
    assert {"elasticgpu.io/gpu-memory", "aliyun.com/gpu-mem", "alnair/vgpu-memory"} <= {*names}
    assert "aliyun.com/gpu-count" not in names
    assert not any(names.values())
    assert [one["schedulerName"] for one in found["profiles"]] == [
        "default-scheduler",
        "alnair-cost-saving",
        "alnair-high-performance",
    ]


def test_pods_that_ask_by_label_need_every_pod_and_their_profile() -> None:
    found = printed("--dialects", "genius,kubeknots,elastic")
    assert managed(found) == {}
    assert {"genius-scheduler", "custom-scheduler"} <= {
        one["schedulerName"] for one in found["profiles"]
    }


def test_what_nodes_do_not_report_is_not_looked_for() -> None:
    assert managed(printed("--dialects", "hami")) == {
        "nvidia.com/gpu": False,
        "nvidia.com/gpumem": True,
        "nvidia.com/gpumem-percentage": True,
        "nvidia.com/gpucores": True,
    }
    assert all(managed(printed("--dialects", "gpushare", "--unreported")).values())


def test_https_with_a_client_certificate() -> None:
    words = ["--ca-file", "/ca", "--cert-file", "/crt", "--key-file", "/key"]
    (entry,) = printed("--url", "https://weft:443/", *words)["extenders"]
    assert entry["urlPrefix"] == "https://weft:443/weft"
    assert entry["enableHTTPS"] is True
    assert entry["tlsConfig"] == {"caFile": "/ca", "certFile": "/crt", "keyFile": "/key"}


@pytest.mark.parametrize(
    "words",
    [
        ["--dialects", "elastic,who"],
        ["--dialects", ""],
        ["--cert-file", "/crt"],
        ["--server-name", "x"],
        ["--ca-file", "/ca"],
        ["--url", "https://weft"],
    ],
)
def test_what_cannot_be_is_named(words: list[str]) -> None:
    with pytest.raises(BadInputError, match="--"):
        printed(*words)


@pytest.mark.parametrize("name", CHOICES)
def test_each_dialect_alone(name: str) -> None:
    found = configuration(SchedulerConfigOptions((name,), "http://w"))
    assert len(found["extenders"]) == 1
    names = [one["schedulerName"] for one in found["profiles"]]
    assert len({*names}) == len(names)


def test_routes_have_their_profiles() -> None:
    for elastic in ("binpack", "spread", "random"):
        routes = default_routes(elastic)  # type: ignore[arg-type]
        names = [one.name for one in route_profiles(routes, built_in().create)]
        assert names[1] == "gpushare"
        assert elastic in names[0]
    with pytest.raises(BadInputError, match="nobody"):
        route_profiles(default_routes(gpushare="nobody"), built_in().create)


def test_profiles_that_weft_scheduler_takes_itself_are_named() -> None:
    result = CliRunner().invoke(extender_app, ["config"], catch_exceptions=False)
    for name in ("weft", "alnair-cost-saving", "alnair-high-performance"):
        assert f" {name}" in result.stderr
    assert "weft extender serve" in result.stderr
    assert "--no-profiles" in result.stderr
    assert "weft: " not in result.stdout


def test_no_profiles_leaves_them_to_weft_scheduler() -> None:
    result = CliRunner().invoke(extender_app, ["config", "--no-profiles"], catch_exceptions=False)
    assert yaml.safe_load(result.stdout)["profiles"] == [{"schedulerName": "default-scheduler"}]
    assert result.stderr == ""


def test_without_such_profiles_nothing_is_said() -> None:
    result = CliRunner().invoke(extender_app, ["config", "--dialects", "gpushare"])
    assert result.stderr == ""
