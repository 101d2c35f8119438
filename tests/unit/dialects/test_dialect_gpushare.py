import json

import pytest
from manifests import EXACT, ask, asks, box, node, parsed, place, pod

from weft.dialects.dialect import Settings
from weft.dialects.gpushare import gpushare_unit_of
from weft.dialects.registry import read_placement, write
from weft.model import BadInputError, GpuClaim, Memory

MEM = "aliyun.com/gpu-mem"
AUTO = Settings()
MIB = Settings(gpushare_unit="MiB")
TABLE = Settings(gpushare_unit="MiB", interference_table=True)


def gib(value):
    return Memory("units", value, unit_mib=1024)


def test_one_card_holds_the_total_of_the_pods_containers():
    request = parsed(ask(MEM, 2, "a"), box("proxy"), ask(MEM, "3", "b"))
    assert request.dialect == "gpushare"
    assert request.shape.claims == (GpuClaim(memory=gib(5)),)
    assert request.shape.unit_mib == 1024
    assert request.shared_by_containers
    assert [c.claims for c in request.containers] == [(0,), (), (0,)]
    assert request.containers[0].asked == GpuClaim(memory=gib(2))
    assert request.warnings == ()


def test_init_containers_borrow_and_sidecars_add():
    request = parsed(
        ask(MEM, 2, "a"),
        ask(MEM, 3, "b"),
        init=[ask(MEM, 1, "side", sidecar=True), ask(MEM, 7, "warm")],
    )
    assert request.shape.claims[0].memory == gib(8)
    assert [c.init for c in request.containers] == [False, True, False, False]


def test_exact_counts_main_containers_only():
    request = parsed(ask(MEM, 2, "a"), init=[ask(MEM, 7, "warm")], settings=EXACT)
    assert request.shape.claims[0].memory == gib(2)


@pytest.mark.parametrize(
    ("value", "kind", "unit"),
    [(2, "units", 1024), (192, "units", 1024), (193, "mib", 1), (16276, "mib", 1)],
)
def test_without_a_setting_the_number_decides_and_says_so(value, kind, unit):
    request = parsed(ask(MEM, value), settings=AUTO)
    assert request.shape.claims[0].memory.kind == kind
    assert request.shape.unit_mib == unit
    assert "unit assumed" in request.warnings[0]


def test_a_set_unit_is_not_doubted():
    request = parsed(ask(MEM, 2), settings=MIB)
    assert request.shape.claims[0].memory == Memory("mib", 2)
    assert request.warnings == ()
    assert parsed(ask(MEM, 300)).shape.claims[0].memory == gib(300)


@pytest.mark.parametrize(
    ("units", "unit"), [(15, "GiB"), (100, "GiB"), (101, "MiB"), (16276, "MiB")]
)
def test_the_unit_of_a_node(units, unit):
    assert gpushare_unit_of(units) == unit


def test_kubernetes_short_form_of_a_round_number_is_the_number():
    assert parsed(ask(MEM, "16k"), settings=MIB).shape.claims[0].memory == Memory("mib", 16000)


@pytest.mark.parametrize("text", ["10G", "10Gi", 10**10])
def test_a_size_in_bytes_is_refused(text):
    with pytest.raises(BadInputError, match="without a suffix"):
        parsed(ask(MEM, text))


def test_gpu_count_gives_nothing_and_says_so():
    request = parsed(ask("aliyun.com/gpu-count", 1))
    assert request.dialect == "gpushare"
    assert request.shape.claims == ()
    assert "gives a pod nothing" in request.warnings[0]


def test_marks_of_extender_and_device_plugin():
    request = parsed(ask(MEM, 2, "a"), ask(MEM, 3, "b"), box("proxy"))
    on = node(16160, 32510)
    marks = write(request, place(request, on, 1), on, 1234567890)
    theirs = {k.removeprefix("ALIYUN_COM_GPU_MEM_"): v for k, v in marks.annotations.items()}
    del theirs["weft.dev/placement"]
    assert theirs == {
        "IDX": "1", "DEV": "31", "POD": "5", "ASSIGNED": "false", "ASSUME_TIME": "1234567890"
    }  # fmt: skip
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
    found = read_placement(pod(ask(MEM, 2), annotations=marks), on, Settings(gpushare_unit="GiB"))
    if gpu is None:
        assert found is None
    else:
        assert [(s.gpu, s.memory_mib) for s in found.shares] == [(gpu, 2 * 16160 // 15)]


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
    assert parsed(broken).shape.claims[0].memory == gib(2)
    only = {"name": "c", "resources": {"requests": {MEM: 2}}}
    assert parsed(only).shape.claims[0].memory == gib(2)
