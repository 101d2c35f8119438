"""Manifests of deploy/ and examples/originals/ are what helm makes of the chart."""

import os

import helm
import pytest
import yaml
from go_tools import NoBinariesError
from rendered_manifests import MANIFESTS, ROOT, manifests


def test_the_manifests_are_rendered_from_the_chart() -> None:
    try:
        program = helm.find_or_build(str, build=False)
    except NoBinariesError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    stale = [str(p.relative_to(ROOT)) for p, text in manifests(program) if p.read_text() != text]
    assert stale == [], "run make manifests"


@pytest.mark.parametrize("name", MANIFESTS)
def test_each_object_is_there_once(name: str) -> None:
    items = list(yaml.safe_load_all((ROOT / name).read_text()))
    named = [(i["kind"], i["metadata"].get("namespace"), i["metadata"]["name"]) for i in items]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_selector_finds_its_pods_and_no_others(name: str) -> None:
    items = list(yaml.safe_load_all((ROOT / name).read_text()))
    pods = [i["spec"]["template"] for i in items if i["kind"] in ("Deployment", "DaemonSet")]
    for item in items:
        selector = item.get("spec", {}).get("selector") or item.get("spec", {}).get("podSelector")
        if selector and pods:
            wanted = selector.get("matchLabels", selector)
            labels = pods[0]["metadata"]["labels"] | {"weft.dev/role": "leader"}
            assert wanted.items() <= labels.items(), item["metadata"]["name"]
