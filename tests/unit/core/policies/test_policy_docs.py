"""The policies' page names every policy and option, and its worked example is what happens."""

import re
from pathlib import Path

import pytest

from weft.core.engine import Bind, Engine, PodAdded, PodSeenBound
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.model import Gpu, GpuMemoryRequest, GpuRequest, Node, Placement, PodRequest, Shape, Share

FOLDER = Path(__file__).parents[4] / "docs" / "reference"
PAGES = ("policies.md", "policies-that-read-metrics.md")
PAGE = "\n".join((FOLDER / page).read_text() for page in PAGES)
SECTIONS = dict(re.findall(r"^### `([a-z-]+)`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
EXAMPLE = {
    name: (node, int(gpu), int(score))
    for name, node, gpu, score in re.findall(
        r"^\| `([a-z-]+)` \| (\w+) \| (\d+) \| (-?\d+) \|", PAGE, re.MULTILINE
    )
}
RESIDENTS = (("a", 0, 6_000, 300), ("b", 0, 11_000, 700), ("b", 1, 2_000, 100))


def test_every_policy_and_no_other_has_a_section_and_an_example():
    assert set(SECTIONS) == set(EXAMPLE) == set(built_in().names())


@pytest.mark.parametrize("policy", built_in().describe(), ids=lambda policy: policy.name)
def test_sections_say_what_is_to_be_said(policy):
    section = SECTIONS[policy.name]
    for word in ("Formula", "Source"):
        assert f"{word}" in section, f"{policy.name}: no {word}"
    reads = section.partition("Reads: ")[2].lower()
    for signal in policy.reads:
        assert signal.replace("_", "-") in reads, f"{policy.name}: reads {signal}"
    for option in policy.options:
        assert f"`{option}`" in section, f"{policy.name}: option {option}"
    assert ("Options" in section) == bool(policy.options)


@pytest.mark.parametrize("name", built_in().names())
def test_the_worked_example(name):
    nodes = [
        Node(node, tuple(Gpu(i, 16_000, "T4", f"GPU-{node}{i}") for i in range(gpus)), 64_000)
        for node, gpus in (("a", 2), ("b", 2), ("c", 1))
    ]
    engine = Engine([Profile("weft", [built_in().create(name)])], nodes, seed=42)
    for number, (node, gpu, mib, milli) in enumerate(RESIDENTS):
        old = Placement(f"old-{number}", node, (Share(0, gpu, mib, milli),), cpu_milli=8_000)
        engine.handle(PodSeenBound(old), 0)
    shape = Shape((GpuRequest(memory=GpuMemoryRequest("mib", 4_000), milli=250),), cpu_milli=4_000)
    command = engine.handle(PodAdded(PodRequest("new", "new", shape)), 1)[0]
    assert isinstance(command, Bind)
    place = command.placement
    assert (place.node, place.shares[0].gpu, command.record.score) == EXAMPLE[name]
