"""Every right that a manifest grants or a page lists is there for a request that Weft makes."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from listed_rights import ListedRight, listed_rights

from weft.cluster import rights
from weft.cluster.config.form import Configuration
from weft.host.cluster_parts import rights_of
from weft.kube.access import ResourceRight

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "weft"
BY_HELM_ALONE = "weft-cleanup"
"""The account whose rights no manifest has; a cluster with the chart's is asked about them."""
PAGE = ROOT / "docs" / "reference" / "kubernetes-api.md"

LISTS_AND_WATCHES = {
    "pods": ("cluster/control/live_cluster.py", "WatchFeed(client, PODS"),
    "nodes": ("cluster/control/live_cluster.py", "WatchFeed(client, NODES"),
    "namespaces": ("cluster/control/optional_feeds.py", "WatchFeed(client, NAMESPACES"),
    "configmaps": ("cluster/control/live_cluster.py", "WatchFeed(client, CONFIG_MAPS"),
    "leases": ("cluster/control/live_cluster.py", "WatchFeed(client, LEASES"),
    "persistentvolumes": ("cluster/control/live_cluster.py", "(VOLUMES, views.take"),
    "persistentvolumeclaims": ("cluster/control/live_cluster.py", "(CLAIMS, views.take"),
    "resourceslices": ("cluster/control/claim_feeds.py", "WatchFeed(client, RESOURCE_SLICES"),
    "deviceclasses": ("cluster/control/claim_feeds.py", "WatchFeed(client, DEVICE_CLASSES"),
    "resourceclaims": ("cluster/control/claim_feeds.py", "WatchFeed(client, RESOURCE_CLAIMS"),
    "devices": ("cluster/control/optional_feeds.py", "WatchFeed(client, DEVICES"),
    "podgroups": ("cluster/control/optional_feeds.py", "WatchFeed(client, kind, take"),
    "poddisruptionbudgets": ("cluster/control/optional_feeds.py", "WatchFeed(client, DISRUPTION"),
    "csinodes": ("cluster/control/live_cluster.py", "(CSI_NODES, views.take"),
    "storageclasses": ("cluster/control/live_cluster.py", "(STORAGE_CLASSES, views.take"),
    "csidrivers": ("cluster/control/live_cluster.py", "(CSI_DRIVERS, views.take"),
    "csistoragecapacities": ("cluster/control/live_cluster.py", "(CSI_CAPACITIES, views.take"),
    "volumeattachments": ("cluster/control/live_cluster.py", "(VOLUME_ATTACHMENTS, views.take"),
}
USED = {
    **{(name, verb): at for name, at in LISTS_AND_WATCHES.items() for verb in ("list", "watch")},
    ("persistentvolumes", "patch"): ("cluster/control/volume_binder.py", "_patch(VOLUMES"),
    ("persistentvolumeclaims", "patch"): ("cluster/control/volume_binder.py", "_patch(CLAIMS"),
    ("pods", "get"): ("kube/bind.py", "self._client.get(PODS"),
    ("pods/binding", "create"): ("kube/bind.py", "binding"),
    ("pods/eviction", "create"): ("kube/client.py", '"eviction"'),
    ("pods", "delete"): ("cluster/eviction/preemptor.py", "delete(PODS"),
    ("pods/status", "patch"): ("kube/conditions.py", '"status"'),
    ("podgroups/status", "patch"): ("cluster/leader/group_conditions.py", '"status"'),
    ("nodes", "get"): ("node/agent/discovery.py", "self._client.get(NODES"),
    ("nodes/status", "patch"): ("node/agent/accounting.py", '"status"'),
    ("events", "create"): ("kube/events.py", '"POST"'),
    ("events", "patch"): ("kube/events.py", '"PATCH"'),
    ("events", "list"): ("cluster/reading/status.py", "TOLD_EVENTS"),
    ("leases", "get"): ("kube/lease.py", '"GET"'),
    ("leases", "create"): ("kube/lease.py", '"POST"'),
    ("leases", "patch"): ("kube/lease.py", '"PATCH"'),
    ("configmaps", "get"): ("kube/configmap.py", '"GET"'),
    ("configmaps", "create"): ("kube/configmap.py", '"POST"'),
    ("configmaps", "patch"): ("kube/configmap.py", '"PATCH"'),
    ("priorityclasses", "list"): ("cluster/snapshot/form.py", "PRIORITY_CLASSES"),
    ("tokenreviews", "create"): ("kube/access.py", "tokenreviews"),
    ("subjectaccessreviews", "create"): ("kube/access.py", "subjectaccessreviews"),
    ("serviceaccounts/token", "create"): ("kube/access.py", "/token"),
    ("services/proxy", "get"): ("cluster/scheduler/explain_client.py", 'proxy_path("services"'),
    ("pods/proxy", "get"): ("cluster/scheduler/explain_client.py", 'proxy_path("pods"'),
    ("/explain/*", "get"): ("host/scheduler.py", "/explain/"),
}
"""(resource, verb): the file whose code needs it, and the words that make the request."""


def granted() -> Iterator[tuple[str, str]]:
    """(resource, verb) of every rule of the manifests."""
    for path in sorted((ROOT / "deploy").glob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            for rule in item.get("rules", ()) if item["kind"] in ("Role", "ClusterRole") else ():
                names = (*rule.get("resources", ()), *rule.get("nonResourceURLs", ()))
                yield from itertools.product(names, rule["verbs"])


def listed() -> Iterator[tuple[str, str]]:
    """(resource, verb) of every row of the page's table of rights beside the manifests'."""
    section = PAGE.read_text().partition("\n## Rights\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| for "):
            _, _, name, verbs, _ = (part.strip() for part in line.split("|"))
            yield from ((name, verb) for verb in verbs.partition(";")[0].split(", "))


@pytest.mark.parametrize("right", sorted({*granted(), *listed()}), ids=" ".join)
def test_every_right_has_its_use(right: tuple[str, str]) -> None:
    assert right in USED, "nothing needs this right, or nobody says here what does"
    file, words = USED[right]
    assert words in (SOURCE / file).read_text()


def test_nothing_is_said_to_use_a_right_that_nobody_is_given() -> None:
    assert set(USED) == {*granted(), *listed()}
    assert len({*listed()}) == 5


def manifest_rights() -> Iterator[ListedRight]:
    """Every right of the manifests of Weft's own parts, by whose it is."""
    items = [
        item
        for path in sorted((ROOT / "deploy").glob("*.yaml"))
        for item in yaml.safe_load_all(path.read_text())
    ]
    accounts = {
        (item["roleRef"]["kind"], item["roleRef"]["name"]): subject["name"]
        for item in items
        for subject in item.get("subjects", ())
        if subject["kind"] == "ServiceAccount"
    }
    for item in items:
        if item["kind"] in ("Role", "ClusterRole"):
            meta = item["metadata"]
            who = accounts.get((item["kind"], meta["name"]), f"role {meta['name']}")
            for rule in item["rules"]:
                yield from _rights_of(rule, who, meta.get("namespace", ""))


def _rights_of(rule: dict[str, Any], who: str, namespace: str) -> Iterator[ListedRight]:
    (group,) = rule.get("apiGroups", [""])
    names = [f"{name}.{group}" if group else name for name in rule.get("resources", ())]
    names += rule.get("nonResourceURLs", ())
    for name, verb, only in itertools.product(
        names, rule["verbs"], rule.get("resourceNames", [""])
    ):
        yield ListedRight(who, verb, name, namespace, only)


def test_the_reference_lists_every_right_and_no_other() -> None:
    expected = [right for right in listed_rights() if right.who != BY_HELM_ALONE]
    assert sorted(expected) == sorted(manifest_rights())


@pytest.mark.parametrize(
    ("who", "needed"),
    [
        ("weft-scheduler", rights_of(Configuration())),
        ("weft-agent", rights.AGENT),
        ("weft-cleanup", rights.CLEANUP),
        ("role weft-inspect", rights.DOCTOR),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_program_asks_for_is_granted(who: str, needed: Sequence[ResourceRight]) -> None:
    granted = {(right.verb, right.resource) for right in listed_rights() if right.who == who}
    asked = {(each.verb, ".".join(filter(None, (each.resource, each.group)))) for each in needed}
    assert asked
    assert asked <= granted


def test_an_agent_asks_for_all_but_its_heartbeat() -> None:
    asked = {f"{each.verb} {each.resource}" for each in rights.AGENT}
    granted = [right for right in listed_rights() if right.who == "weft-agent"]
    assert {
        right.resource
        for right in granted
        if f"{right.verb} {right.resource.partition('.')[0]}" not in asked
    } == {"leases.coordination.k8s.io"}


def test_nobody_may_everything() -> None:
    assert [right for right in manifest_rights() if "*" in (right.verb, right.resource)] == []
