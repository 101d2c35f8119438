from manifests import EXACT, SANE, ask, asks, box, node, parsed, place, pod

from weft.dialects.registry import read_placement, write
from weft.model import GpuMemoryRequest, GpuRequest
from weft.model.annotations import PLACEMENT

MEMORY, COMPUTE = "alnair/vgpu-memory", "alnair/vgpu-compute"
GPU_ID = "ai.centaurus.io/alnair-gpu-id"


def units(value):
    return GpuMemoryRequest("units", value, unit_mib=1024, half_up=True)


def test_one_card_holds_memory_and_cores_of_the_whole_pod():
    request = parsed(asks("a", {MEMORY: 3, COMPUTE: 20}), box("proxy"), asks("b", {MEMORY: 4}))
    assert request.dialect == "alnair"
    assert request.shape.gpu_requests == (GpuRequest(memory=units(7), milli=200),)
    assert request.shared_by_containers
    assert request.shape.unit_mib == 0


def test_exact_ignores_init_containers():
    init = [ask(MEMORY, 9, "i")]
    assert parsed(ask(MEMORY, 3), init=init).shape.gpu_requests[0].memory == units(9)
    assert parsed(ask(MEMORY, 3), init=init, settings=EXACT).shape.gpu_requests[0].memory == units(
        3
    )


def test_cores_alone_charge_no_memory_and_say_so():
    request = parsed(ask(COMPUTE, 30))
    assert request.shape.gpu_requests == (GpuRequest(milli=300),)
    assert "no GPU memory" in request.warnings[0]


def test_more_than_a_cards_cores_are_held_at_a_card():
    request = parsed(asks("a", {MEMORY: 1, COMPUTE: 150}), asks("b", {MEMORY: 1, COMPUTE: 60}))
    assert request.shape.gpu_requests[0].milli == 1000
    assert [c.asked.milli for c in request.containers] == [1000, 600]
    assert len(request.warnings) == 2


def test_the_scheduler_names_without_resources_ask_for_nothing():
    for name in ("alnair-cost-saving", "alnair-high-performance"):
        request = parsed(box(), scheduler=name)
        assert request.dialect == "none"
        assert request.shape.gpu_requests == ()
        assert request.scheduler_name == name


def test_marks_of_scheduler_and_device_plugin():
    request = parsed(asks("a", {MEMORY: 3, COMPUTE: 20}), ask(MEMORY, 1, "b"))
    on = node(16160, 16160)
    marks = write(request, place(request, on, 1), on, 77)
    # Its plugin takes a pod that has none of its own annotations yet.
    assert marks.annotations.keys() == {"ai.centaurus.io/scheduler-timestamp", PLACEMENT}
    assert marks.annotations["ai.centaurus.io/scheduler-timestamp"] == "77"
    ids = [marks.env[c]["ALNAIR_ID"] for c in "ab"]
    assert [len(i) for i in set(ids)] == [5, 5]
    assert marks.env["a"]["ALNAIR_VGPU_COMPUTE_PERCENTILE"] == "20"
    assert "ALNAIR_VGPU_COMPUTE_PERCENTILE" not in marks.env["b"]
    assert marks.env["a"]["NVIDIA_VISIBLE_DEVICES"] == "GPU-1"
    assert marks.env["a"]["LD_PRELOAD"] == "/opt/alnair/libcuinterpose.so"


def test_units_the_original_mixed_over_cards_are_charged_where_they_are():
    bound = pod(
        asks("a", {MEMORY: 3, COMPUTE: 20}), annotations={GPU_ID: "GPU-0_4,GPU-1_2,GPU-1_3"}
    )
    found = read_placement(bound, node(16160, 16384), SANE)
    assert [(s.gpu, s.memory_mib, s.milli) for s in found.shares] == [(0, 1010, 200), (1, 2048, 0)]


def test_unknown_cards_and_missing_marks_are_no_placement():
    for marks in ({GPU_ID: "GPU-9_0"}, {GPU_ID: ""}, {}):
        assert read_placement(pod(ask(MEMORY, 1), annotations=marks), node(16160), SANE) is None


def test_cards_without_a_uuid_are_named_by_index():
    request = parsed(ask(MEMORY, 1))
    on = node(16160, 16160, uuids=False)
    placement = place(request, on, 1)
    assert write(request, placement, on, 0).env["c"]["NVIDIA_VISIBLE_DEVICES"] == "1"
    theirs = {GPU_ID: "1_0"}
    assert read_placement(pod(ask(MEMORY, 1), annotations=theirs), on, SANE) == placement


def test_the_pods_own_variables_that_compete_are_named():
    own = {"LD_PRELOAD": "x", "NVIDIA_VISIBLE_DEVICES": "0", "HOME": "/"}
    request = parsed(
        ask(MEMORY, 1, "a", env=own), box("proxy", env={"NVIDIA_VISIBLE_DEVICES": "all"})
    )
    assert [w.split(":")[0] for w in request.warnings] == [
        "container a sets LD_PRELOAD itself",
        "container a sets NVIDIA_VISIBLE_DEVICES itself",
        "container proxy sets NVIDIA_VISIBLE_DEVICES but asks for no GPU",
    ]
    assert parsed(box(env={"NVIDIA_VISIBLE_DEVICES": "void"})).warnings == ()


def test_fewer_ids_than_units_may_be_all_of_it_on_each_card():
    for text in ("GPU-0_4,GPU-1_2", "GPU-0_4,GPU-0_4,GPU-1_2"):
        bound = pod(asks("a", {MEMORY: 3, COMPUTE: 20}), annotations={GPU_ID: text})
        found = read_placement(bound, node(16160, 16384), SANE)
        assert [(s.gpu, s.memory_mib, s.milli) for s in found.shares] == [
            (0, 3030, 200),
            (1, 3072, 200),
        ]


def test_the_plugins_word_goes_before_wefts_own():
    request = parsed(ask(MEMORY, 2))
    on = node(16160, 16160)
    marks = write(request, place(request, on, 0), on, 0).annotations
    bound = pod(ask(MEMORY, 2), annotations={**marks, GPU_ID: "GPU-1_0,GPU-1_1"})
    assert read_placement(bound, on, SANE) == place(request, on, 1)
