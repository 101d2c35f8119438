"""Written placements can be read back: from Weft's annotation, and from each system's own marks."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as how
from hypothesis import strategies as st
from long_form import few_or_many

from weft.dialects.catalog import ALL
from weft.dialects.dialect import DialectSettings
from weft.dialects.evidence import ChargedPlacement
from weft.dialects.registry import choose, dialect, parse_pod, read_placement, write
from weft.dialects.shares import decode, placement_of, share_on, subject_of
from weft.model import BadInputError, Gpu, Node, PodManifest, Share
from weft.model.annotations import PLACEMENT, PLACEMENT_COPY
from weft.model.node import CardNames

MEM = "aliyun.com/gpu-mem"
FEWER = how(max_examples=few_or_many(12, 60))  # of each system


def limits(**values):
    return st.fixed_dictionaries(
        {}, optional={name: st.integers(0, top) for name, top in values.items()}
    )


ELASTIC = limits(**{"elasticgpu.io/gpu-core": 250, "elasticgpu.com/gpu-memory": 4000})
ALNAIR = limits(**{"alnair/vgpu-memory": 6, "alnair/vgpu-compute": 60})
HAMI = limits(
    **{
        "nvidia.com/gpu": 3,
        "nvidia.com/gpumem": 900,
        "nvidia.com/gpucores": 40,
        "nvidia.com/gpumem-percentage": 40,
    }
)
WEFT = limits(**{"weft.dev/gpu-memory": 900, "weft.dev/gpu-cores": 40, "weft.dev/gpu-count": 2})
VOLCANO = limits(
    **{
        "volcano.sh/vgpu-number": 3,
        "volcano.sh/vgpu-memory": 900,
        "volcano.sh/vgpu-cores": 40,
        "volcano.sh/vgpu-memory-percentage": 40,
    }
)
OWN_MARKS = {
    "elastic": ELASTIC,
    "gpushare": limits(**{MEM: 5}),
    "coscheml": limits(**{MEM: 5}),
    "alnair": ALNAIR,
    "hami": HAMI,
    "volcano": VOLCANO,
}
WEFTS_MARK = {**OWN_MARKS, "weft": WEFT, "nvidia": limits(**{"nvidia.com/gpu": 3})}

settings = st.builds(
    DialectSettings,
    gpushare_unit=st.sampled_from(["auto", "GiB", "MiB"]),
    interference_table=st.booleans(),
    compat=st.sampled_from(["sane", "exact"]),
)


@st.composite
def pods(draw, asked):
    names = iter(["cnn", "b", "c", "i", "j", "s"])

    def containers(most, **more):
        found = []
        for _ in range(draw(st.integers(0, most))):
            found.append({"name": next(names), "resources": {"limits": draw(asked)}, **more})
        return found

    inits = [*containers(1), *containers(1, restartPolicy="Always")]
    return {
        "metadata": {"name": "p", "uid": "u-1", "labels": {}, "annotations": {}},
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": draw(asked)}}, *containers(2)],
            "initContainers": inits,
            "nodeName": "n",
        },
    }


@st.composite
def nodes(draw):
    sizes = draw(st.lists(st.sampled_from([16160, 32510, 81920]), min_size=4, max_size=9))
    known = draw(st.booleans())
    gpus = [Gpu(i, mib, uuid=f"GPU-{i:x}-{mib}" if known else "") for i, mib in enumerate(sizes)]
    return Node("n", gpus=tuple(gpus))


def place(draw, request, node):
    shares = []
    for index, gpu_request in enumerate(request.shape.gpu_requests):
        if gpu_request.count > len(node.gpus):
            return None
        left = gpu_request.memory.value
        for number, gpu in enumerate(draw(st.permutations(node.gpus))[: gpu_request.count], 1):
            if gpu_request.split:
                mib = left if number == gpu_request.count else draw(st.integers(0, left))
                left -= mib
                shares.append(Share(index, gpu.index, mib, 0, gpu.uuid))
            else:
                shares.append(share_on(index, gpu_request, gpu))
    return placement_of(request, node, shares)


def bound(manifest, annotations, labels):
    meta = {**manifest["metadata"], "annotations": annotations, "labels": labels}
    return msgspec.convert({**manifest, "metadata": meta}, PodManifest)


@pytest.mark.parametrize("name", WEFTS_MARK)
@FEWER
@given(data=st.data())
def test_wefts_annotation_carries_everything(name, data):
    manifest = data.draw(pods(WEFTS_MARK[name]))
    chosen, node = data.draw(settings), data.draw(nodes())
    pod = msgspec.convert(manifest, PodManifest)
    request = parse_pod(pod, chosen)
    placement = place(data.draw, request, node)
    if placement is None:
        return
    marks = write(request, placement, node, 7)
    back = bound(manifest, marks.annotations, marks.labels)
    assert read_placement(back, node, chosen) == placement
    # The dialect's own `read` keeps the same promise without the registry.
    assert dialect(request.dialect).read(back, request, node) == placement


def alnairs_plugin_writes(request, placement):
    """Its own annotation: one of the card's units after the other, or one for cores alone."""
    (share,) = placement.shares
    count = max(1, request.shape.gpu_requests[0].memory.value)
    units = (f"{share.uuid or share.gpu}_{number}" for number in range(count))
    return {"ai.centaurus.io/alnair-gpu-id": ",".join(units)}


@pytest.mark.parametrize("name", OWN_MARKS)
@FEWER
@given(data=st.data())
def test_each_systems_own_marks_name_the_same_gpus(name, data):
    manifest = data.draw(pods(OWN_MARKS[name]))
    chosen, node = data.draw(settings), data.draw(nodes())
    request = parse_pod(msgspec.convert(manifest, PodManifest), chosen)
    if request.dialect in ("nvidia", "none"):
        return
    placement = place(data.draw, request, node)
    if placement is None:
        return
    marks = write(request, placement, node, 7)
    theirs = {k: v for k, v in marks.annotations.items() if k != PLACEMENT}
    if name == "alnair" and placement.shares:
        theirs |= alnairs_plugin_writes(request, placement)
    assert read_placement(bound(manifest, theirs, marks.labels), node, chosen) == placement


KOORDINATOR = st.one_of(
    st.fixed_dictionaries({"gpu": st.sampled_from([1, 30, 50, 99, 100, 200])}),
    st.fixed_dictionaries(
        {"gpu-core": st.integers(1, 100), "gpu-memory": st.integers(1, 16_000 << 20)},
        optional={"gpu.shared": st.integers(1, 3)},
    ),
    st.fixed_dictionaries(
        {"gpu-core": st.integers(1, 100), "gpu-memory-ratio": st.integers(1, 100)},
        optional={"gpu.shared": st.integers(1, 3)},
    ),
    st.fixed_dictionaries(
        {"gpu-memory": st.integers(1, 16_000 << 20)}, optional={"gpu.shared": st.integers(1, 3)}
    ),
)


@how(max_examples=few_or_many(60, 300))
@given(data=st.data())
def test_koordinators_mark_names_the_same_gpus_by_their_minor_numbers(data):
    asks = {f"koordinator.sh/{name}": str(n) for name, n in data.draw(KOORDINATOR).items()}
    manifest = data.draw(pods(st.just(asks)))
    manifest["spec"] |= {"containers": manifest["spec"]["containers"][:1], "initContainers": []}
    node = data.draw(nodes().filter(lambda node: node.gpus[0].uuid))
    minors = data.draw(st.permutations(range(len(node.gpus))))
    names = {f"koordinator/{minor}": gpu.uuid for minor, gpu in zip(minors, node.gpus, strict=True)}
    node = msgspec.structs.replace(node, called=CardNames(cards=names))
    request = parse_pod(msgspec.convert(manifest, PodManifest), DialectSettings())
    placement = place(data.draw, request, node)
    assert placement is not None
    marks = write(request, placement, node, 7)
    theirs = {k: v for k, v in marks.annotations.items() if k != PLACEMENT}
    back = bound(manifest, theirs, marks.labels)
    found = read_placement(back, node, DialectSettings())
    assert [share.gpu for share in found.shares] == sorted(s.gpu for s in placement.shares)
    of = {share.gpu: share for share in placement.shares}
    for share in found.shares:  # their percents are whole: rounded down, and then what is asked
        asked = of[share.gpu]
        assert (share.memory_mib, share.milli) == (asked.memory_mib, asked.milli)
    assert dialect("koordinator").wrong_marks(back, request, node) is None


def charges(placement):
    """MiB and thousandths by claim and GPU."""
    return {(s.gpu_request, s.gpu): (s.memory_mib, s.milli) for s in placement.shares}


@st.composite
def edits(draw, text, node):
    """Weft's annotation as an owner may change it; None: it is removed."""
    value = json.loads(text)
    shares = value["shares"]
    how = draw(st.sampled_from(["gone", "damaged", "another's", "none", "less", "moved", "new"]))
    if how in ("gone", "damaged"):
        return None if how == "gone" else draw(st.sampled_from(["", "{", "7", "{}", text[:-1]]))
    if how == "another's":
        value["pod"] = "u-2"
    elif how == "none":
        value["shares"] = draw(st.sampled_from([[], shares[:-1], [[0, 1]], 7]))
    else:
        row = draw(st.sampled_from(shares))
        if how == "moved":
            row[1] = draw(st.integers(0, 2 * len(node.gpus)))
        amounts = st.integers(0, row[2]), st.integers(0, row[3])
        if how == "less":
            row[2:4] = [draw(amount) for amount in amounts]
        if how == "new":
            value["shares"] = [[0, draw(st.integers(0, len(node.gpus) - 1)), 0, 0, ""]]
    return json.dumps(value)


@pytest.mark.parametrize("name", WEFTS_MARK)
@FEWER
@given(data=st.data())
def test_an_edit_of_what_was_bound_frees_nothing_and_is_noticed(name, data):
    manifest = data.draw(pods(WEFTS_MARK[name]))
    chosen, node = data.draw(settings), data.draw(nodes())
    request = parse_pod(msgspec.convert(manifest, PodManifest), chosen)
    placement = place(data.draw, request, node)
    if placement is None or not placement.shares:
        return
    system, marks = dialect(request.dialect), write(request, placement, node, 7)
    written = {**marks.annotations, PLACEMENT_COPY: marks.annotations[PLACEMENT]}

    def weighed(annotations):
        return system.weigh(bound(manifest, annotations, marks.labels), request, node)

    assert weighed(written) == ChargedPlacement(placement)
    key = data.draw(st.sampled_from([PLACEMENT, PLACEMENT_COPY]))
    text = data.draw(edits(written[key], node))
    changed = {k: v for k, v in {**written, key: text}.items() if v is not None}
    found, before = weighed(changed), charges(placement)
    after = charges(found.placement)
    for place_of, amounts in before.items():
        assert all(a >= b for a, b in zip(after[place_of], amounts, strict=True))
    said = decode(text, request) if text and subject_of(text) == ("u-1", "n") else None
    if key == PLACEMENT or text is not None:
        assert bool(found.edited) == (said != placement.shares)
    assert (found.placement == placement) or found.edited


@given(
    st.dictionaries(
        st.sampled_from(
            [
                "genius/gpu-number",
                "genius/gpu-memory-each",
                "genius/gpu-memory-total",
                "genius/gpu-model",
                "GPU_MEM_REQ",
            ]
        ),
        st.sampled_from(["0", "1", "2", "700", "A100", "-3"]),
    ),
    limits(**{"nvidia.com/gpu": 2}),
    settings,
    nodes(),
    st.data(),
)
def test_pods_that_ask_by_label_round_trip_too(labels, asked, chosen, node, data):
    manifest = {
        "metadata": {"name": "p", "uid": "u-1", "labels": labels},
        "spec": {"containers": [{"name": "a", "resources": {"limits": asked}}]},
    }
    pod = msgspec.convert(manifest, PodManifest)
    try:
        request = parse_pod(pod, chosen)
    except BadInputError:
        assert "GPU_MEM_REQ" in labels
        return
    placement = place(data.draw, request, node)
    if placement is None:
        return
    marks = write(request, placement, node, 7)
    back = bound(manifest, marks.annotations, {**labels, **marks.labels})
    assert read_placement(back, node, chosen) == placement


@given(st.data(), settings)
def test_whose_a_pod_is_never_depends_on_its_containers_order(data, chosen):
    manifest = data.draw(pods(st.one_of(*WEFTS_MARK.values())))
    spec = manifest["spec"]
    turned = {**manifest, "spec": {**spec, "containers": spec["containers"][::-1]}}

    def owner(value):
        try:
            return choose(msgspec.convert(value, PodManifest), chosen)[0].name
        except BadInputError:
            return None

    assert owner(manifest) == owner(turned)


texts = st.one_of(
    st.integers(-5, 10**20),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["1e9", "10G", "500m", "1e99999", "16k", "2Ei", "-1"]),
)
names = st.sampled_from([*(r for d in ALL for r in d.resources), "cpu", "memory", "rdma/hca"])
marked = st.dictionaries(
    st.sampled_from(
        [
            "genius/gpu-number",
            "genius/gpu-model",
            "genius/priority",
            "GPU_MEM_REQ",
            "weft.dev/class",
            "weft.dev/placement",
            "nvidia.com/use-gputype",
            "ALIYUN_COM_GPU_MEM_IDX",
            "ai.centaurus.io/alnair-gpu-id",
            "elasticgpu.io/assumed",
            "hami.io/vgpu-devices-allocated",
        ]
    ),
    st.text(max_size=12),
    max_size=3,
)


@given(st.dictionaries(names, texts, max_size=3), marked, marked, settings)
def test_any_manifest_is_read_or_refused_with_one_line(asked, labels, annotations, chosen):
    manifest = {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"containers": [{"name": "a", "resources": {"limits": asked}}]},
    }
    pod = msgspec.convert(manifest, PodManifest)
    node = Node("n", gpus=(Gpu(0, 16160, uuid="GPU-0"), Gpu(1, 16160, uuid="GPU-1")))
    found = error = None
    try:
        found = read_placement(pod, node, chosen)
    except BadInputError as refused:
        error = refused
    assert error is None or (error.where and error.problem)
    assert found is None or {share.gpu for share in found.shares} <= {0, 1}
