"""Settings for how GPUs are connected, for nodes that report nothing about it."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from weft.dialects.node_links import LinksRule
from weft.files.form import Section
from weft.model.gpu_links import GpuLinks, checked_links


class GpuLinksRule(Section, frozen=True):
    """How GPUs are connected on the nodes that match; of several rules the first match counts."""

    matrix: Annotated[
        tuple[str, ...],
        "a row for each GPU, by index, with its connections to all GPUs, as in nvidia-smi topo -m",
    ]
    nvlink_generation: Annotated[
        int,
        Meta(ge=0, le=5),
        "generation of the NVLinks; 0: none or unknown, which counts as an A100's",
    ] = 0
    numa: Annotated[
        tuple[int, ...],
        "each GPU's NUMA node, as nvidia-smi topo -m shows it; by default all GPUs count as "
        "being on the same NUMA node",
    ] = ()
    nodes: Annotated[
        str, "a shell pattern that a node's name must match; by default it matches all nodes"
    ] = "*"
    labels: Annotated[dict[str, str], "labels that a node must have; none by default"] = (
        msgspec.field(default_factory=dict)
    )

    def links(self, where: str) -> GpuLinks:
        """Return the links of the matrix; `BadInputError` at `where` if the matrix is invalid."""
        indexes = tuple(range(len(self.matrix)))
        links = GpuLinks(indexes, self.matrix, self.nvlink_generation, self.numa)
        return checked_links(links, where)


def links_rules(rules: Sequence[GpuLinksRule]) -> list[LinksRule]:
    """Convert the configured rules to `LinksRule`s; `BadInputError` names the first invalid one."""
    return [
        LinksRule(rule.links(f"gpuLinks[{at}].matrix"), rule.nodes, rule.labels)
        for at, rule in enumerate(rules)
    ]
