"""Configurations of the originals and of older kube-schedulers, carried over.

The texts are written after the originals' own files: same fields, same values.
"""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from weft.cli.main import app
from weft.cluster.config import made_profiles, read
from weft.cluster.config.old_schedulers import ImportedConfiguration, import_configuration
from weft.core.policies.catalog import built_in
from weft.model import BadInputError

OLD = Path(__file__).parents[2] / "golden" / "old_configurations"
GPUSHARE_POLICY = json.loads((OLD / "gpushare-policy.json").read_text())
ELASTIC_POLICY = {
    "kind": "Policy",
    "apiVersion": "v1",
    "extenders": [
        {
            "urlPrefix": "http://10.96.0.7:39999/scheduler",
            "filterVerb": "filter",
            "prioritizeVerb": "priorities",
            "bindVerb": "bind",
            "weight": 1,
            "enableHttps": False,
            "httpTimeout": 5_000_000_000,
            "nodeCacheCapable": True,
            "managedResources": [
                {"name": "elasticgpu.io/gpu-memory"},
                {"name": "elasticgpu.io/gpu-core"},
            ],
        }
    ],
}
GPUSHARE_V1BETA2 = """\
---
apiVersion: kubescheduler.config.k8s.io/v1beta2
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
extenders:
- urlPrefix: "http://127.0.0.1:32766/gpushare-scheduler"
  filterVerb: filter
  bindVerb: bind
  enableHTTPS: false
  nodeCacheCapable: true
  managedResources:
  - name: aliyun.com/gpu-mem
    ignoredByScheduler: false
  ignorable: false
"""
ALNAIR = """\
apiVersion: kubescheduler.config.k8s.io/v1beta2
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}
profiles:
- schedulerName: default-scheduler
  plugins: &saving
    filter: {enabled: [{name: alnaircostsaving}]}
    score: {enabled: [{name: alnaircostsaving}], disabled: [{name: "*"}]}
- schedulerName: alnair-cost-saving
  plugins: *saving
- schedulerName: alnair-high-performance
  plugins:
    filter: {enabled: [{name: alnairhighperformance}]}
    score: {enabled: [{name: alnairhighperformance}], disabled: [{name: "*"}]}
"""
GENIUS = """\
kind: ClusterRole
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: genius-scheduler-clusterrole}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: scheduler-config, namespace: kube-system}
data:
  scheduler-config.yaml: |
    apiVersion: kubescheduler.config.k8s.io/v1beta1
    kind: KubeSchedulerConfiguration
    leaderElection: {leaderElect: true, resourceLock: leases, resourceName: genius-scheduler}
    profiles:
    - schedulerName: genius-scheduler
      plugins:
        preFilter: {enabled: [{name: genius}]}
        filter: {enabled: [{name: genius}]}
        score: {enabled: [{name: genius, weight: 300}]}
"""
LOAD_AWARE = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: dynamic-scheduler-policy, namespace: kube-system}
data:
  policy.yaml: |
    apiVersion: v1
    kind: public-dynamic-scheduler
    spec:
      syncPeriod:
        - {name: gpu_core_usage_avg, period: 15s}
        - {name: gpu_memory_usage_avg, period: 15s}
"""
OLD_PLUGINS = """\
apiVersion: kubescheduler.config.k8s.io/v1beta1
kind: KubeSchedulerConfiguration
metricsBindAddress: 0.0.0.0:10251
leaderElection: {leaderElect: true, resourceLock: endpoints}
profiles:
- schedulerName: default-scheduler
  plugins:
    score:
      enabled: [{name: NodeResourcesMostAllocated, weight: 5}, {name: ImageLocality}]
      disabled: [{name: NodeResourcesLeastAllocated}]
  pluginConfig:
  - name: InterPodAffinity
    args: {apiVersion: kubescheduler.config.k8s.io/v1beta1, kind: InterPodAffinityArgs}
"""


def imported(text: str | dict[str, object]) -> ImportedConfiguration:
    whole = text if isinstance(text, str) else json.dumps(text)
    result = import_configuration(whole.encode(), "old.yaml")
    if result.weft is not None:  # Weft itself takes it
        made = read.decode(yaml.safe_dump(result.weft).encode(), "new.yaml")
        made_profiles.profiles(made, built_in())
    return result


def left(result: ImportedConfiguration) -> list[tuple[str, str]]:
    return [(each.where, each.value) for each in result.left_out]


def test_gpushare_is_the_same_from_either_form() -> None:
    policy, configuration = imported(GPUSHARE_POLICY), imported(GPUSHARE_V1BETA2)
    extender = {
        "urlPrefix": "http://127.0.0.1:32766/gpushare-scheduler",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
        "ignorable": False,
    }
    assert policy.kube_scheduler == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": "default-scheduler"}],
        "extenders": [extender],
    }
    assert configuration.kube_scheduler == {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "extenders": [extender],
    }
    for result in (policy, configuration):
        assert result.left_out == ()
        assert result.weft == {
            "apiVersion": "weft.dev/v1",
            "kind": "WeftConfiguration",
            "extender": {
                "enabled": True,
                "originalPorts": True,
                "routes": {"/gpushare-scheduler": "auto"},
            },
        }


def test_elastic_keeps_its_extender_and_counts_nanoseconds_no_more() -> None:
    result = imported(ELASTIC_POLICY)
    assert result.kube_scheduler is not None
    (extender,) = result.kube_scheduler["extenders"]
    assert extender["httpTimeout"] == "5s"
    assert extender["prioritizeVerb"] == "priorities"
    assert extender["enableHTTPS"] is False
    assert result.weft is not None
    assert result.weft["extender"]["routes"] == {"/scheduler": "elastic-binpack"}
    assert result.left_out == ()


def test_alnairs_profiles_become_wefts() -> None:
    result = imported(ALNAIR)
    assert result.weft is not None
    assert result.weft["profiles"] == [
        {"schedulerName": name, "policies": [{"name": name}]}
        for name in ("alnair-cost-saving", "alnair-high-performance")
    ]
    assert result.kube_scheduler is not None
    assert result.kube_scheduler["profiles"] == [{"schedulerName": "default-scheduler"}]
    assert left(result) == [("document 1.profiles[0].plugins", "alnair-cost-saving")]


def test_genius_is_read_out_of_its_deployment() -> None:
    result = imported(GENIUS)
    assert result.weft is not None
    assert result.weft["profiles"] == [
        {"schedulerName": "genius-scheduler", "policies": [{"name": "genius"}]}
    ]
    assert result.kube_scheduler is None  # no profile is left for it
    inner = "document 2.data[scheduler-config.yaml]"
    assert [where for where, _ in left(result)] == [
        "document 1",
        f"{inner}.profiles[0].plugins.score.enabled[0].weight",
        f"{inner}.leaderElection",
    ]


def test_load_aware_names_its_metrics_policy() -> None:
    result = imported(LOAD_AWARE)
    assert result.weft is not None
    assert result.weft["extender"]["routes"] == {"/scheduler": "nano-load-binpack"}
    spec = "document 1.data[policy.yaml].spec.syncPeriod"
    assert left(result) == [(f"{spec}[0].period", "15s"), (f"{spec}[1].period", "15s")]


def test_fields_and_plugins_that_are_gone_are_told() -> None:
    result = imported(OLD_PLUGINS)
    assert result.weft is None
    assert result.kube_scheduler is not None
    assert result.kube_scheduler["leaderElection"]["resourceLock"] == "leases"
    (profile,) = result.kube_scheduler["profiles"]
    assert profile["plugins"] == {"score": {"enabled": [{"name": "ImageLocality"}]}}
    (arguments,) = profile["pluginConfig"]
    assert arguments["args"]["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    score = "document 1.profiles[0].plugins.score"
    assert left(result) == [
        ("document 1.metricsBindAddress", "0.0.0.0:10251"),
        ("document 1.leaderElection.resourceLock", "endpoints"),
        (f"{score}.enabled[0]", "NodeResourcesMostAllocated"),
        (f"{score}.disabled[0]", "NodeResourcesLeastAllocated"),
    ]


def test_priorities_keep_their_weights_and_only_they_score() -> None:
    policy = {
        "kind": "Policy",
        "apiVersion": "v1",
        "predicates": [{"name": "PodFitsResources"}, {"name": "TestServiceAffinity"}],
        "priorities": [
            {"name": "LeastRequestedPriority", "weight": 2},
            {"name": "ServiceSpreadingPriority", "weight": 1},
        ],
        "hardPodAffinitySymmetricWeight": 10,
        "alwaysCheckAllPredicates": True,
    }
    result = imported(policy)
    assert result.kube_scheduler is not None
    (profile,) = result.kube_scheduler["profiles"]
    assert profile["plugins"]["score"] == {
        "disabled": [{"name": "*"}],
        "enabled": [{"name": "NodeResourcesFit", "weight": 2}],
    }
    assert profile["pluginConfig"][0]["args"]["hardPodAffinityWeight"] == 10
    assert [value for _, value in left(result)] == [
        "ServiceSpreadingPriority",
        "TestServiceAffinity",
        "True",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "line 2: is not YAML"),
        ("---\nkind: Deployment\n", "holds no scheduler configuration"),
        ("", "holds no scheduler configuration"),
        ("kind: KubeSchedulerConfiguration\nprofiles: 3\n", r"profiles: 3 is not a list"),
        ("kind: Policy\nextenders: [1]\n", r"extenders\[0\]: 1 is not an object"),
        ("- 1\n", "holds no scheduler configuration"),
    ],
)
def test_what_cannot_be_read_is_one_error(text: str, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        import_configuration(text.encode(), "old.yaml")


_VALUES = st.recursive(
    st.none() | st.integers() | st.text("ab*", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(("name", "enabled", "plugins", "score", "args")), inner)
    ),
    max_leaves=6,
)


@given(
    st.sampled_from(("Policy", "KubeSchedulerConfiguration", "ConfigMap", "List", "")),
    st.dictionaries(
        st.sampled_from(
            ("profiles", "extenders", "priorities", "predicates", "data", "items", "spec", "x")
        ),
        _VALUES,
    ),
)
def test_nothing_that_is_yaml_breaks_it(kind: str, fields: dict[str, object]) -> None:
    where = "old.yaml"
    try:
        imported(json.dumps({"kind": kind} | fields))
    except BadInputError as error:
        where = error.where
    assert where.startswith("old.yaml")


def test_exit_codes_tell_whether_all_was_carried_over(tmp_path: Path) -> None:
    for text, code in ((json.dumps(GPUSHARE_POLICY), 0), (GENIUS, 3)):
        path = tmp_path / "old"
        path.write_text(text)
        result = CliRunner().invoke(app, ["config", "import", str(path)])
        assert result.exit_code == code
        documents = list(yaml.safe_load_all(result.stdout))
        assert documents[-1]["kind"] == "WeftConfiguration"
        assert ("not carried over: " in result.stderr) == bool(code)
