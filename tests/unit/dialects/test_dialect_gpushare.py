import json

import pytest
from manifests import EXACT, ask, asks, box, node, parsed, place, pod
from msgspec.structs import replace

from weft.dialects import shares
from weft.dialects.dialect import DialectSettings
from weft.dialects.gpushare import gpushare_unit_of
from weft.dialects.registry import dialect, parse_pod, read_placement, write
from weft.model import BadInputError, GpuMemoryRequest, GpuRequest, Share

MEM = "aliyun.com/gpu-mem"
AUTO = DialectSettings()
MIB = DialectSettings(gpushare_unit="MiB")
NODE = DialectSettings(gpushare_unit="node")
TABLE = DialectSettings(gpushare_unit="MiB", interference_table=True)


def gib(value):
    return GpuMemoryRequest("units", value, unit_mib=1024)


def test_one_card_holds_the_total_of_the_pods_containers():
    request = parsed(ask(MEM, 2, "a"), box("proxy"), ask(MEM, "3", "b"))
    assert request.dialect == "gpushare"
    assert request.shape.gpu_requests == (GpuRequest(memory=gib(5)),)
    assert request.shape.unit_mib == 1024
    assert request.shared_by_containers
    assert [c.gpu_requests for c in request.containers] == [(0,), (), (0,)]
    assert request.containers[0].asked == GpuRequest(memory=gib(2))
    assert request.warnings == ()


def test_init_containers_borrow_and_sidecars_add():
    request = parsed(
        ask(MEM, 2, "a"),
        ask(MEM, 3, "b"),
        init=[ask(MEM, 1, "side", sidecar=True), ask(MEM, 7, "warm")],
    )
    assert request.shape.gpu_requests[0].memory == gib(8)
    assert [c.init for c in request.containers] == [False, True, False, False]


def test_exact_counts_main_containers_only():
    request = parsed(ask(MEM, 2, "a"), init=[ask(MEM, 7, "warm")], settings=EXACT)
    assert request.shape.gpu_requests[0].memory == gib(2)


@pytest.mark.parametrize(
    ("value", "kind", "unit"),
    [(2, "units", 1024), (192, "units", 1024), (193, "mib", 1), (16276, "mib", 1)],
)
def test_without_a_setting_the_number_decides_and_says_so(value, kind, unit):
    request = parsed(ask(MEM, value), settings=AUTO)
    assert request.shape.gpu_requests[0].memory.kind == kind
    assert request.shape.unit_mib == unit
    assert "unit assumed" in request.warnings[0]


def test_a_set_unit_is_not_doubted():
    request = parsed(ask(MEM, 2), settings=MIB)
    assert request.shape.gpu_requests[0].memory == GpuMemoryRequest("mib", 2)
    assert request.warnings == ()
    assert parsed(ask(MEM, 300)).shape.gpu_requests[0].memory == gib(300)


@pytest.mark.parametrize(
    ("units", "unit"), [(15, "GiB"), (100, "GiB"), (101, "MiB"), (16276, "MiB")]
)
def test_the_unit_of_a_node(units, unit):
    assert gpushare_unit_of(units) == unit


def test_kubernetes_short_form_of_a_round_number_is_the_number():
    assert parsed(ask(MEM, "16k"), settings=MIB).shape.gpu_requests[0].memory == GpuMemoryRequest(
        "mib", 16000
    )


@pytest.mark.parametrize("text", ["10G", "10Gi", 10**10])
def test_a_size_in_bytes_is_refused(text):
    with pytest.raises(BadInputError, match="not bytes; write how many"):
        parsed(ask(MEM, text))


def test_gpu_count_gives_nothing_and_says_so():
    request = parsed(ask("aliyun.com/gpu-count", 1))
    assert request.dialect == "gpushare"
    assert request.shape.gpu_requests == ()
    assert "gives a pod nothing" in request.warnings[0]


def test_marks_of_extender_and_device_plugin():
    request = parsed(ask(MEM, 2, "a"), ask(MEM, 3, "b"), box("proxy"))
    on = node(16160, 32510)
    marks = write(request, place(request, on, 1), on, 1234567890)
    theirs = {k.removeprefix("ALIYUN_COM_GPU_MEM_"): v for k, v in marks.annotations.items()}
    del theirs["weft.dev/placement"]
    assert theirs == {
        "IDX": "1",
        "DEV": "31",
        "POD": "5",
        "ASSIGNED": "false",
        "ASSUME_TIME": "1234567890",
    }
    assert marks.labels == {}
    assert marks.env["b"] == {
        "NVIDIA_VISIBLE_DEVICES": "1",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "3",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "31",
    }
    assert set(marks.env) == {"a", "b"}


def test_a_mib_cluster_writes_mib():
    request = parsed(ask(MEM, 300), settings=MIB)
    on = node(16160)
    assert (
        write(request, place(request, on, 0), on, 0).annotations["ALIYUN_COM_GPU_MEM_DEV"]
        == "16160"
    )


@pytest.mark.parametrize(
    ("marks", "gpu"),
    [
        ({"ALIYUN_COM_GPU_MEM_IDX": "1"}, 1),
        ({"scheduler.framework.gpushare.allocation": json.dumps({"0": {"1": 2}})}, 1),
        (
            {"scheduler.framework.gpushare.allocation": json.dumps({"0": {"1": 2}, "1": {"0": 1}})},
            None,
        ),
        ({"scheduler.framework.gpushare.allocation": "[1]"}, None),
        ({"scheduler.framework.gpushare.allocation": "{"}, None),
        ({"ALIYUN_COM_GPU_MEM_IDX": "-1"}, None),
        ({"ALIYUN_COM_GPU_MEM_IDX": "9"}, None),
        ({}, None),
    ],
)
def test_a_pod_the_original_placed_is_read_back(marks, gpu):
    on = node(16160, 16160)
    found = read_placement(
        pod(ask(MEM, 2), annotations=marks), on, DialectSettings(gpushare_unit="GiB")
    )
    if gpu is None:
        assert found is None
    else:
        assert [(s.gpu, s.memory_mib) for s in found.shares] == [(gpu, 2 * 16160 // 15)]


def units_of_a_node(number: int, guessed: int) -> GpuMemoryRequest:
    return GpuMemoryRequest("node-units", number, guessed)


@pytest.mark.parametrize(("number", "guessed"), [(8, 1024), (192, 1024), (193, 1)])
def test_where_each_node_counts_nothing_is_decided_yet(number, guessed):
    request = parsed(ask(MEM, number), settings=NODE)
    assert request.shape.unit_mib == 0
    assert request.shape.gpu_requests[0].memory == units_of_a_node(number, guessed)
    assert request.warnings == ()


@pytest.mark.parametrize(("counts", "mib", "card"), [(1024, 8 * 16160 // 15, 15), (1, 8, 16160)])
def test_marks_are_in_the_units_of_the_node_and_read_back_so(counts, mib, card):
    on = replace(node(16160), unit_mib=counts)
    request = parsed(ask(MEM, 8), settings=NODE)
    placement = shares.placement_of(request, on, [Share(0, 0, mib, 0, on.gpus[0].uuid)])
    marks = write(request, placement, on, 0).annotations
    assert marks["ALIYUN_COM_GPU_MEM_POD"] == "8"
    assert marks["ALIYUN_COM_GPU_MEM_DEV"] == str(card)
    del marks["weft.dev/placement"]
    assert read_placement(pod(ask(MEM, 8), annotations=marks), on, NODE) == placement


@pytest.mark.parametrize(
    ("asked", "counts", "card", "setting", "mib", "doubted"),
    [
        (8, 1024, "15", "node", 8 * 16160 // 15, ""),
        (8, 1, "16160", "node", 8, ""),
        (8, 1, "", "node", 8, ""),
        # Switched since: the larger, if the card can hold it.
        (8, 1, "15", "node", 8 * 16160 // 15, "its node counts in MiB, its annotations in GiB"),
        (
            8,
            1024,
            "16160",
            "node",
            8 * 16160 // 15,
            "its node counts in GiB, its annotations in MiB",
        ),
        (800, 1024, "16160", "node", 800, "its node counts in GiB, its annotations in MiB"),
        (800, 1024, "", "node", 16161, ""),  # as the node says, more than it has
        # The node says nothing: the marks, else the setting, else the number.
        (100, 0, "16160", "node", 100, ""),
        (8, 0, "15", "node", 8 * 16160 // 15, ""),
        (8, 0, "", "node", 8 * 16160 // 15, ""),
        (800, 0, "", "auto", 800, ""),
        (8, 0, "", "MiB", 8, ""),
        (8, 0, "15", "MiB", 8 * 16160 // 15, "gpushareUnit counts in MiB, its annotations in GiB"),
        # The setting contradicts the node.
        (8, 1024, "15", "MiB", 8 * 16160 // 15, ""),
        (8, 1, "", "GiB", 8 * 16160 // 15, ""),
        (800, 1, "16160", "GiB", 800, ""),
        # Marks that are nothing.
        (8, 1, "-15", "node", 8, ""),
        (8, 1, "0", "node", 8, ""),
        (8, 1, "9" * 30, "node", 8, ""),
        (8, 1, "\N{FULLWIDTH DIGIT ONE}5", "node", 8, ""),
    ],
)
def test_a_bound_pod_is_read_as_its_node_counts(asked, counts, card, setting, mib, doubted):
    marks = {"ALIYUN_COM_GPU_MEM_IDX": "0"} | ({"ALIYUN_COM_GPU_MEM_DEV": card} if card else {})
    manifest, on = pod(ask(MEM, asked), annotations=marks), replace(node(16160), unit_mib=counts)
    settings = DialectSettings(gpushare_unit=setting)
    found = read_placement(manifest, on, settings)
    assert [share.memory_mib for share in found.shares] == [mib]
    request = parse_pod(manifest, settings)
    doubt = dialect("gpushare").on_node(manifest, request, on, settings)[1]
    assert doubted in doubt
    assert bool(doubt) == bool(doubted)


def test_the_marks_of_another_pod_say_no_unit():
    other = {"weft.dev/placement": json.dumps({"pod": "other", "node": "n", "shares": []})}
    marks = {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_DEV": "15", **other}
    manifest, on = pod(ask(MEM, 8), annotations=marks), replace(node(16160), unit_mib=1)
    request = parse_pod(manifest, NODE)
    found, doubt = dialect("gpushare").on_node(manifest, request, on, NODE)
    assert (found.shape.gpu_requests[0].memory, doubt) == (GpuMemoryRequest("mib", 8), "")


def test_coscheml_is_gpushare_with_an_application_where_a_table_is():
    manifest = ask(MEM, 300, "google")
    request = parsed(box("proxy"), manifest, settings=TABLE)
    assert request.dialect == "coscheml"
    assert request.shape.application == "Googlenet"
    assert request.shared_by_containers
    assert parsed(manifest, settings=MIB).dialect == "gpushare"
    assert parsed(manifest, settings=MIB).shape.application == ""
    assert parsed(ask(MEM, 300, "webserver"), settings=TABLE).dialect == "gpushare"


def test_the_first_recognised_container_names_the_application():
    both = [ask(MEM, 1, "cnn"), ask(MEM, 1, "lammps")]
    assert parsed(*both, settings=TABLE).shape.application == "CNN"


def test_an_annotation_names_the_application_better():
    request = parsed(
        ask(MEM, 300, "cnn"), annotations={"weft.dev/application": "mine"}, settings=TABLE
    )
    assert request.shape.application == "mine"


def test_request_and_limit_must_agree():
    broken = asks("c", {MEM: 2})
    broken["resources"]["requests"] = {MEM: 3}
    with pytest.raises(BadInputError, match="differs from the limit"):
        parsed(broken)
    broken["resources"]["requests"] = {MEM: "2"}
    assert parsed(broken).shape.gpu_requests[0].memory == gib(2)
    only = {"name": "c", "resources": {"requests": {MEM: 2}}}
    assert parsed(only).shape.gpu_requests[0].memory == gib(2)
