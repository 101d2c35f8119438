"""Everything that an agent writes is what the admission policies let it write."""

from pathlib import Path

import pytest
import yaml

from weft.cluster.admission.protection import NODE_LABELS, ON_NODES, Writers, protection_policies
from weft.dialects.advertised import advertised_cards, amounts_of
from weft.dialects.catalog import RESOURCES
from weft.dialects.dialect import UnitSettings
from weft.model import Gpu
from weft.model.agent_offer import AgentOffer
from weft.model.annotations import ADVERTISES
from weft.node.agent.accounting import dialects_with_resources
from weft.node.agent.discovery import ANNOTATIONS, marks_of

AGENT_MANIFEST = Path(__file__).parents[3] / "deploy" / "agent.yaml"
AGENTS_ROLES = ("weft-agent", "weft-agent-heartbeat")
CARDS = (Gpu(0, 40_960, model="A100"), Gpu(1, 40_960, model="Tesla T4"))


def test_its_annotations_and_labels_are_those_of_a_nodes_gpus() -> None:
    marks = marks_of(CARDS, AgentOffer("1", "by-name", ("none",)))
    assert {ADVERTISES, *ANNOTATIONS, *marks.annotations} <= set(ON_NODES)
    (prefix,) = NODE_LABELS
    assert marks.labels
    assert [name for name in marks.labels if not name.startswith(prefix.removesuffix("*"))] == []


@pytest.mark.parametrize("spellings", [True, False])
def test_it_advertises_gpu_resources_alone(spellings: bool) -> None:
    units = UnitSettings(all_spellings=spellings)
    systems = (*dialects_with_resources(), "nvidia")
    amounts = amounts_of(advertised_cards(CARDS, systems, units))
    assert {*amounts.capacity, *amounts.allocatable} <= set(RESOURCES)
    assert len(amounts.capacity) >= 5


def test_each_write_that_rbac_grants_an_agent_has_a_policy() -> None:
    policies = protection_policies(Writers())
    bounded = {
        resource
        for item in policies
        if item["kind"] == "ValidatingAdmissionPolicy"
        and item["metadata"]["name"].startswith("weft-agent-")
        for rule in item["spec"]["matchConstraints"]["resourceRules"]
        for resource in rule["resources"]
    }
    rules = [
        rule
        for item in yaml.safe_load_all(AGENT_MANIFEST.read_text())
        if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] in AGENTS_ROLES
        for rule in item["rules"]
    ]
    reading = {"get", "list", "watch"}
    written = {name for rule in rules if {*rule["verbs"]} - reading for name in rule["resources"]}
    assert written
    assert written <= bounded
