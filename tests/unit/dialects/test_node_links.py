"""How a node's GPUs are connected, read from whoever tells."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from manifests import ask, parsed
from msgspec import UNSET

from fakes.gpu_links import bridged_pairs, dgx_1
from weft.cluster.config.read import read
from weft.dialects.inventory import inventory
from weft.dialects.node_links import HAMI_SCORES, LinksRule, links_text
from weft.dialects.weft import inventory_text
from weft.kube.structs import KubeNode
from weft.model import BadInputError, Gpu
from weft.model.annotations import GPU_LINKS, INVENTORY, TOPOLOGY
from weft.model.gpu_links import GpuLinks, checked_links, gbps_of, nvlink_generation, path_strength

CARDS = [Gpu(index, 40_000, "NVIDIA-A100", f"GPU-{index}") for index in range(4)]
PAIRS = bridged_pairs(4)


def links_of(told: dict[str, str], *, rules: Any = (), cards: Any = CARDS) -> tuple[Any, Any]:
    annotations = {INVENTORY: inventory_text(cards), **told}
    meta = {"name": "n1", "annotations": annotations, "labels": {"pool": "fast"}}
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    node = msgspec.convert({"metadata": meta, "spec": {}, "status": status}, KubeNode)
    found, warnings = inventory(node, links=rules)
    return found.links, warnings


def scores(*rows: tuple[int, ...]) -> str:
    return json.dumps(
        [
            {"uuid": f"GPU-{one}", "score": {f"GPU-{o}": v for o, v in enumerate(row) if o != one}}
            for one, row in enumerate(rows)
        ]
    )


def test_the_annotation_is_read_as_it_is_written() -> None:
    assert links_of({GPU_LINKS: links_text(PAIRS)}) == (PAIRS, ())
    assert links_of({}) == (UNSET, ())


def test_cards_that_the_node_does_not_have_are_left_out() -> None:
    found, _ = links_of({GPU_LINKS: links_text(PAIRS)}, cards=[CARDS[0], CARDS[2], CARDS[3]])
    assert found == GpuLinks((0, 2, 3), ("X SYS SYS", "SYS X NV4", "SYS NV4 X"), 3, (0, 1, 1))
    assert links_of({GPU_LINKS: links_text(PAIRS)}, cards=CARDS[:1])[0] is UNSET


def test_hami_scores_are_nvlinks_and_the_pcie_path() -> None:
    told = scores((0, 430, 10, 20), (430, 0, 30, 40), (10, 30, 0, 250), (20, 40, 250, 0))
    found, warnings = links_of({HAMI_SCORES: told})
    rows = ("X NV4 SYS NODE", "NV4 X PHB PXB", "SYS PHB X NV2", "NODE PXB NV2 X")
    assert found == GpuLinks((0, 1, 2, 3), rows, nvlink_generation=3)
    assert warnings == ()


def test_wefts_annotation_goes_before_hami_and_both_before_the_configuration() -> None:
    rule = LinksRule(GpuLinks((0, 1), ("X PIX", "PIX X")), labels={"pool": "fast"})
    other = LinksRule(PAIRS, nodes="else-*")
    hami = scores((0, 110), (110, 0))
    assert links_of({}, rules=[other, rule])[0] == rule.links
    assert links_of({HAMI_SCORES: hami}, rules=[rule])[0].paths == ("X NV1", "NV1 X")
    assert links_of({HAMI_SCORES: hami, GPU_LINKS: links_text(PAIRS)})[0] == PAIRS


@pytest.mark.parametrize(
    ("annotation", "text", "why"),
    [
        (GPU_LINKS, "{", "truncated"),
        (GPU_LINKS, '{"indexes": [0], "paths": ["X X"]}', "write 1 rows of 1 paths"),
        (GPU_LINKS, '{"indexes": [0, 1], "paths": ["X NV4", "NV2 X"]}', "NV4 one way, NV2 the"),
        (GPU_LINKS, '{"indexes": [0, 1], "paths": ["X FOO", "FOO X"]}', "'FOO' is not a link type"),
        (GPU_LINKS, '{"indexes": [0, 0], "paths": ["X PIX", "PIX X"]}', "different indexes"),
        (GPU_LINKS, '{"indexes": [], "paths": []}', "different indexes"),
        (GPU_LINKS, " " * 65_537, "65,537 characters"),
        (
            HAMI_SCORES,
            '[{"uuid": "GPU-0", "score": {}}, {"uuid": "GPU-1", "score": {}}]',
            "no score",
        ),
        (HAMI_SCORES, "[" * 20_000, ""),
    ],
)
def test_nonsense_is_ignored_with_a_warning(annotation: str, text: str, why: str) -> None:
    rule = LinksRule(GpuLinks((0, 1), ("X PIX", "PIX X")))
    found, (warning,) = links_of({annotation: text}, rules=[rule])
    assert found == rule.links
    assert why in warning
    assert annotation in warning


def test_paths_are_in_the_order_of_what_nccl_reckons() -> None:
    words = ("NV4", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS")
    strengths = [path_strength(word, 2) for word in words]
    assert strengths == sorted(strengths, reverse=True)
    assert len(set(strengths)) == len(words)
    by_generation = [gbps_of(path_strength("NV1", generation)) for generation in range(1, 6)]
    assert by_generation == [18.0, 20.0, 20.0, 20.6, 40.1]


def test_numa_nodes_that_are_all_the_same_say_nothing() -> None:
    links = GpuLinks((0, 1), ("X  PIX", "PIX X"), 0, (3, 3))
    assert checked_links(links, "here") == GpuLinks((0, 1), ("X PIX", "PIX X"))
    with pytest.raises(
        BadInputError, match=r"here, NUMA: 1 NUMA nodes for 2 GPUs; write one for each"
    ):
        checked_links(GpuLinks((0, 1), ("X PIX", "PIX X"), 0, (3,)), "here")
    assert checked_links(dgx_1(), "here") == dgx_1()


def test_a_models_name_tells_the_generation_of_its_nvlinks() -> None:
    names = (
        "Tesla-V100-SXM2-16GB",
        "NVIDIA-A100-SXM4-40GB",
        "NVIDIA-H200",
        "Tesla-T4",
        "NVIDIA-B200",
    )
    assert [nvlink_generation(name) for name in names] == [2, 3, 4, 0, 5]


@pytest.mark.parametrize(("word", "wish"), [("required", "required"), ("none", "none")])
def test_a_pod_says_what_it_wants(word: str, wish: str) -> None:
    two = ask("weft.dev/gpu-count", 2)
    assert parsed(two, annotations={TOPOLOGY: word}).shape.topology == wish
    assert parsed(two, annotations={TOPOLOGY: "preferred"}).shape == parsed(two).shape
    with pytest.raises(BadInputError, match=r"required, preferred, none|did you mean"):
        parsed(two, annotations={TOPOLOGY: "always"})


def test_one_gpu_needs_no_links() -> None:
    one = ask("weft.dev/gpu-count", 1)
    assert parsed(one, annotations={TOPOLOGY: "required"}).shape.topology is UNSET


def configuration(tmp_path: Path, rule: str) -> Any:
    path = tmp_path / "weft.yaml"
    path.write_text(f"apiVersion: weft.dev/v1\nkind: WeftConfiguration\ngpuLinks:\n- {rule}\n")
    return read(path)


def test_the_configuration_takes_the_matrix_of_nvidia_smi(tmp_path: Path) -> None:
    config = configuration(
        tmp_path, "{nodes: 'gpu-*', nvlinkGeneration: 4, matrix: ['X  NV18', 'NV18  X']}"
    )
    assert config.gpu_links[0].links("x") == GpuLinks((0, 1), ("X NV18", "NV18 X"), 4)
    with pytest.raises(
        BadInputError, match=r"gpuLinks\[0\].matrix, row 1: 'NVX' is not a link type"
    ):
        configuration(tmp_path, "{matrix: ['X NVX', 'NVX X']}")
    with pytest.raises(BadInputError, match=r"gpuLinks\[0\].*unknown field `matrx`"):
        configuration(tmp_path, "{matrx: ['X']}")
