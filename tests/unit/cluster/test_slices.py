"""ResourceSlices: which devices are GPUs, which of them one card, and which a part of one."""

from typing import Any

import msgspec
import pytest

from fakes.claims import MIB, device, slice_of
from weft.cluster.state.slices import NodeCards, SliceView
from weft.dialects.inventory import inventory
from weft.dialects.node_links import LinksRule
from weft.kube.dra import ResourceSlice
from weft.kube.structs import KubeNode
from weft.kube.watch import Added, Deleted
from weft.model.gpu_links import GpuLinks

Json = dict[str, Any]


def view_of(*bodies: Json) -> SliceView:
    view = SliceView()
    for body in bodies:
        view.take(Added(msgspec.convert(body, ResourceSlice)))
    return view


def cards(*bodies: Json) -> NodeCards:
    return view_of(*bodies).cards("n")


def counted(name: str, memory_mib: int, counters: str, **more: Any) -> Json:
    uses = [{"counterSet": counters, "counters": {}}]
    return device(name, memory_mib=memory_mib, consumesCounters=uses, **more)


def test_partitions_that_are_cut_on_demand_have_a_parent_and_take_nobody() -> None:
    found = cards(
        slice_of(
            "n",
            [
                counted("gpu-0", 80_000, "set-0"),
                counted("gpu-0-mig-1g-0", 10_000, "set-0"),
                counted("gpu-0-mig-1g-1", 10_000, "set-0"),
                counted("gpu-1", 80_000, "set-1"),
            ],
        )
    )
    assert [(g.index, g.parent, g.memory_mib, g.in_service) for g in found.gpus] == [
        (0, None, 80_000, True),
        (1, None, 80_000, True),
        (2, 0, 10_000, False),
        (3, 0, 10_000, False),
    ]


def test_instances_of_a_card_that_no_slice_shows() -> None:
    def instance(number: int) -> Json:
        parent = {"parentUUID": {"string": "GPU-p"}, "type": {"string": "mig"}}
        return device(f"gpu-0-mig-{number}", f"MIG-{number}", 20_000, attributes=parent)

    gpus = cards(slice_of("n", [instance(0), instance(1)])).gpus
    assert [(g.index, g.uuid, g.parent, g.memory_mib, g.in_service) for g in gpus] == [
        (0, "GPU-p", None, 40_000, False),
        (1, "MIG-0", 0, 20_000, True),
        (2, "MIG-1", 0, 20_000, True),
    ]


def test_cards_of_two_drivers_are_one_by_uuid_or_by_address() -> None:
    at = {"resource.kubernetes.io/pciBusID": {"string": "0000:3B:00.0"}}
    first = slice_of("n", [device("gpu-0", "GPU-x", 80_000, attributes=at)], driver="a.example.com")
    same = device("hami-0", "GPU-x", 79_000)
    passed = device("vfio-0", memory_mib=80_000)
    passed["attributes"] = {"pciBusID": {"string": "00000000:3b:00.0"}}
    second = slice_of("n", [same, passed], driver="b.example.com")

    found = cards(first, second)

    assert [(gpu.uuid, gpu.memory_mib) for gpu in found.gpus] == [("GPU-x", 79_000)]
    assert set(found.index_of.values()) == {0}
    assert len(found.index_of) == 3


def test_a_card_of_which_one_driver_tells_the_uuid_another_the_address_and_a_third_both() -> None:
    at = {"pciBusID": {"string": "0000:3b:00.0"}}
    passed = {**device("vfio-0"), "attributes": {**at, "uuid": {"string": "made-up"}}}
    found = cards(
        slice_of("n", [device("gpu-0", "GPU-x")], driver="a.example.com"),
        slice_of("n", [passed], driver="b.example.com"),
        slice_of("n", [device("gpu-0", "GPU-x", attributes=at)], driver="c.example.com"),
    )
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-x"]
    assert set(found.index_of.values()) == {0}


def test_a_card_that_is_passed_through_keeps_the_uuid_that_others_know() -> None:
    at = {"pciBusID": {"string": "0000:3b:00.0"}}
    passed = {**device("vfio-0"), "attributes": {**at, "uuid": {"string": "made-up"}}}
    found = cards(
        slice_of("n", [passed], driver="a.example.com"),
        slice_of("n", [device("gpu-0", "GPU-x", attributes=at)], driver="b.example.com"),
    )
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-x"]


def test_gpus_that_take_from_one_counter_together_are_no_partitions_of_the_largest() -> None:
    kind = {"type": {"string": "gpu"}}
    both = [{"counterSet": name, "counters": {}} for name in ("power", "set-0")]
    large = device("gpu-0", memory_mib=80_000, attributes=kind, consumesCounters=both)
    small = counted("gpu-1", 40_000, "power", attributes=kind)
    part = counted("gpu-0-mig-0", 10_000, "set-0", attributes={"type": {"string": "mig"}})
    found = cards(slice_of("n", [large, small, part]))
    assert [(g.index, g.parent, g.memory_mib, g.in_service) for g in found.gpus] == [
        (0, None, 80_000, True),
        (1, None, 40_000, True),
        (2, 0, 10_000, False),
    ]


def test_a_card_is_out_of_service_where_all_its_drivers_taint_it() -> None:
    taints = [{"key": "broken", "effect": "NoSchedule"}]
    sick = device("gpu-0", "GPU-0", taints=taints)
    noted = device("gpu-1", "GPU-1", taints=[{"key": "noted", "effect": "None"}])
    assert [g.in_service for g in cards(slice_of("n", [sick, noted])).gpus] == [False, True]
    again = slice_of("n", [device("gpu-0", "GPU-0")], driver="b.example.com")
    assert [g.in_service for g in cards(slice_of("n", [sick, noted]), again).gpus] == [True, True]


def test_equal_uuids_in_two_pools_are_one_gpu_and_named() -> None:
    found = cards(
        slice_of("n", [device("a", "GPU-x")], pool="one"),
        slice_of("n", [device("b", "GPU-x")], pool="two"),
    )
    assert len(found.gpus) == 1
    assert found.problems == (
        "2 devices of gpu.example.com have the UUID GPU-x: they count as one GPU",
    )


def test_a_pool_counts_as_it_was_last_complete() -> None:
    view = view_of(slice_of("n", [device("gpu-0")]))
    half = slice_of("n", [device("gpu-1")], generation=2, count=2)
    view.take(Added(msgspec.convert(half, ResourceSlice)))
    assert [gpu.uuid for gpu in view.cards("n").gpus] == ["GPU-gpu-0"]
    assert view.problems == {("gpu.example.com", "n"): "1 of 2 slices of generation 2"}

    rest = slice_of("n", [device("gpu-2")], generation=2, count=2, part=1)
    view.take(Added(msgspec.convert(rest, ResourceSlice)))
    assert [gpu.uuid for gpu in view.cards("n").gpus] == ["GPU-gpu-1", "GPU-gpu-2"]
    assert not view.problems

    for body in (half, rest):
        view.take(Deleted(msgspec.convert(body, ResourceSlice)))
    assert view.cards("n").gpus == ()
    assert not view.problems


def test_what_has_no_memory_or_no_identity_is_no_gpu() -> None:
    nic = {"name": "nic-0", "attributes": {"pciAddress": {"string": "0000:01:00.0"}}}
    dimm = {"name": "ram-0", "capacity": {"memory": {"value": str(64 * 1024 * MIB)}}}
    odd = device("odd")
    odd["capacity"]["memory"]["value"] = "lots"
    odd["attributes"] = {"uuid": {"string": "x"}}
    assert cards(slice_of("n", [nic, dimm, odd])).gpus == ()


def test_another_maker_s_attributes() -> None:
    made = {
        "name": "card1",
        "attributes": {
            "gpu.intel.com/pciAddress": {"string": "0000:03:00.0"},
            "gpu.intel.com/model": {"string": "Flex 170"},
            "gpu.intel.com/uuid": {"string": "0000-03-00-0-0x56c0"},
        },
        "capacity": {"memory": {"value": "16Gi"}, "millicores": {"value": "1000"}},
    }
    (gpu,) = cards(slice_of("n", [made], driver="gpu.intel.com")).gpus
    assert (gpu.index, gpu.model, gpu.memory_mib) == (1, "Flex 170", 16_384)


def at(name: str, numa: Json | None, root: str = "", **more: Any) -> Json:
    """A device at this NUMA node, by the standard attributes of Kubernetes 1.37."""
    standard = {"pcieRoot": {"string": root}} | ({"numaNode": numa} if numa is not None else {})
    named = {f"resource.kubernetes.io/{key}": value for key, value in standard.items()}
    return device(name, attributes=named, **more)


def test_cards_of_one_numa_node_are_nearer_to_each_other() -> None:
    devices = [
        at("gpu-0", {"int": 0}, "pci0000:00"),
        at("gpu-1", {"int": 1}, "pci0000:80"),
        at("gpu-2", {"ints": [0, 1]}, "pci0000:00"),
        at("gpu-3", {"int": 0}, "pci0000:40"),
        at("gpu-4", None),
    ]

    links = cards(slice_of("n", devices)).links

    assert links == GpuLinks(
        (0, 1, 2, 3),
        ("X SYS PHB NODE", "SYS X SYS SYS", "PHB SYS X NODE", "NODE SYS NODE X"),
        numa=(0, 1, 0, 0),
    )


@pytest.mark.parametrize("numa", [None, {"string": "0"}, {"int": -1}, {"ints": []}])
def test_where_not_two_cards_say_their_numa_node_nothing_is_known_of_links(
    numa: Json | None,
) -> None:
    devices = [at("gpu-0", {"int": 0}), at("gpu-1", numa)]
    assert cards(slice_of("n", devices)).links is None


def test_another_s_word_of_a_node_s_links_goes_before_the_slices() -> None:
    """An agent's, and the configuration's; theirs know of NVLinks."""
    source = cards(slice_of("n", [at(f"gpu-{i}", {"int": i}) for i in (0, 1)])).source
    told = '{"indexes": [0, 1], "paths": ["X NV4", "NV4 X"], "nvlink_generation": 3}'
    shown = msgspec.convert({"metadata": {"name": "n"}}, KubeNode)
    marks = {"name": "n", "annotations": {"weft.dev/gpu-links": told}}
    by_agent = msgspec.convert({"metadata": marks}, KubeNode)
    rule = LinksRule(GpuLinks((0, 1), ("X PIX", "PIX X")))

    seen = [
        inventory(node, slices=source, links=rules)[0].links
        for node, rules in ((shown, ()), (by_agent, ()), (shown, (rule,)))
    ]

    assert [links and links.paths[0] for links in seen] == ["X SYS", "X NV4", "X PIX"]
