"""A pod's CPU and memory are what kube-scheduler counts: while it waits, bound, and resized."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from sums_slowly import PlainContainer, PlainPod, PlainStatus, counted, manifest

from weft.cluster.state.pod_reader import plain_shape, read
from weft.cluster.state.resizes import as_set_aside
from weft.cluster.state.volumes import VolumeView
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model import Shape

AMOUNTS = st.fixed_dictionaries(
    {}, optional={name: st.integers(0, 5) for name in ("cpu", "memory")}
)
STATUSES = st.none() | st.builds(PlainStatus, AMOUNTS, AMOUNTS)
PODS = st.builds(
    PlainPod,
    init=st.lists(
        st.builds(PlainContainer, st.sampled_from(("init", "sidecar")), AMOUNTS, STATUSES),
        max_size=4,
    ),
    mains=st.lists(
        st.builds(PlainContainer, st.just("main"), AMOUNTS, STATUSES), min_size=1, max_size=3
    ),
    overhead=AMOUNTS,
    own=AMOUNTS,
    own_status=STATUSES,
    refused=st.booleans(),
)


def of(shape: Shape) -> tuple[int, int]:
    return shape.cpu_milli, shape.memory_mib


@given(PODS)
def test_what_a_pod_takes_is_what_a_plain_reading_of_the_rules_says(plain: PlainPod) -> None:
    pod, settings = msgspec.convert(manifest(plain), Pod), DialectSettings()
    waits = counted(plain, "cpu", bound=False), counted(plain, "memory", bound=False)
    assert of(read(pod, settings, VolumeView()).shape) == waits
    bound = counted(plain, "cpu", bound=True), counted(plain, "memory", bound=True)
    assert of(plain_shape(as_set_aside(pod), settings)) == bound
