"""A pod that kube-scheduler asks about: what it has judged itself is not judged again."""

from collections.abc import Iterable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from weft.cluster.state.pod_reader import read, read_asked
from weft.cluster.state.volumes import VolumeView
from weft.core.engine import Engine, NodesChanged, PodSeenBound
from weft.core.engine.questions import which_fit
from weft.core.framework import Profile
from weft.core.policies.catalog import built_in
from weft.dialects.dialect import DialectSettings
from weft.kube.pods import Pod
from weft.model import Node, PodMarks, PodRequest, PodSelector, PodTerm, Taint
from weft.model.request import CORDON
from weft.testing import node, placement

TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
ANTI = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
SPECS = {
    "nodeSelector": {"zone": "b"},
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}
        },
        "podAntiAffinity": ANTI,
        "podAffinity": ANTI,
    },
    "topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "unbound"}}],
    "resourceClaims": [{"name": "gpu_request"}],
}
taints = st.lists(
    st.sampled_from([CORDON, Taint("gpu", "NoExecute"), Taint("spot", "PreferNoSchedule")]),
    unique=True,
    max_size=2,
)
drawn = st.tuples(taints, st.booleans(), st.sampled_from(["a", "b"]), st.sampled_from([100, 4000]))


def pod(fields: list[str]) -> Pod:
    limits = {"elasticgpu.io/gpu-memory": "500", "cpu": "2"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}]}
    raw = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": spec | {field: SPECS[field] for field in fields},
    }
    return msgspec.convert(raw, Pod)


KEEPS_AWAY = PodMarks("elsewhere", {}, (PodTerm("zone", PodSelector(None, ())),))


def fits(nodes: list[Node], asked: PodRequest, away: Iterable[str] = ()) -> list[str]:
    """Names of the nodes that fit; on those of `away` is a pod that keeps all others away."""
    profile = Profile("p", [built_in().create("best-fit")])
    engine = Engine([profile])
    engine.handle(NodesChanged(tuple(nodes)), 0)
    for name in away:
        engine.handle(PodSeenBound(placement(f"on-{name}", name), marks=KEEPS_AWAY), 0)
    return which_fit(engine, profile, asked, [one.name for one in nodes]).fits


@given(st.lists(drawn, max_size=6), st.sets(st.sampled_from(sorted(SPECS))))
def test_it_fits_where_it_would_if_there_were_nothing_but_room(
    draws: list[tuple[list[Taint], bool, str, int]], fields: set[str]
) -> None:
    plain, dressed, away = [], [], []
    for number, (own, keeps_away, zone, memory) in enumerate(draws):
        bare = node(f"n{number}", gpus=1, memory_mib=memory)
        plain.append(bare)
        dressed.append(msgspec.structs.replace(bare, taints=tuple(own), labels={"zone": zone}))
        away += [bare.name] if keeps_away else []
    asked = pod(sorted(fields))
    want = fits(plain, read(pod([]), DialectSettings(), VolumeView()))
    assert fits(dressed, read_asked(asked, DialectSettings()), away) == want


def test_by_itself_weft_would_judge_them() -> None:
    plain = node("n", gpus=1, memory_mib=4000)
    zoned = msgspec.structs.replace(plain, labels={"zone": "a"})
    assert fits([zoned], read(pod([]), DialectSettings(), VolumeView()), ["n"]) == []
    for field in SPECS:
        assert fits([plain], read(pod([field]), DialectSettings(), VolumeView())) == []
