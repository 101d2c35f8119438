"""`weft adopt` on a cluster where claims hold GPUs: no pod is charged for what a claim has."""

from typing import Any

import msgspec
from live_world import node, pod

from fakes.api_clock import VirtualClock
from fakes.claims import claim, device, result, slice_of
from weft.cluster.adoption.account import ClusterAccount, account_of
from weft.cluster.reading.claims import ClaimObjects
from weft.cluster.reading.reading import HowToRead
from weft.kube.dra import ResourceClaim, ResourceSlice
from weft.kube.pods import Pod
from weft.kube.structs import KubeNode

Json = dict[str, Any]


def account(pods: list[Json], *claims: Json) -> ClusterAccount:
    """A node with two cards, GPU-gpu-0 and -1, published in a slice and known by nothing else."""
    bare = node()
    del bare["metadata"]["annotations"]["weft.dev/inventory"]
    slices = [msgspec.convert(slice_of("n", [device("gpu-0"), device("gpu-1")]), ResourceSlice)]
    held = [msgspec.convert(each, ResourceClaim) for each in claims]
    return account_of(
        [msgspec.convert(bare, KubeNode)],
        (),
        [msgspec.convert(each, Pod) for each in pods],
        HowToRead(),
        VirtualClock(),
        ClaimObjects(slices, (), held),
    )


def whole(name: str, **status: Any) -> Json:
    """A bound pod that asks for one card, and does not say which."""
    made = pod(name, scheduler="default-scheduler")
    made["metadata"]["uid"] = f"uid-{name}"
    asks = {"limits": {"nvidia.com/gpu": "1"}}
    made["spec"] = {"nodeName": "n", "containers": [{"name": "c", "resources": asks}]}
    return {**made, "status": status}


def with_uid(made: Json) -> Json:
    made["metadata"]["uid"] = f"uid-{made['metadata']['name']}"
    return made


def test_a_guess_spares_the_card_that_a_claim_has() -> None:
    held = with_uid(claim("x", result("gpu-1")))

    (adopted,) = account([whole("p")], held).pods

    assert adopted.state == "ambiguous"
    assert [share.gpu for share in adopted.shares] == [0]


def test_a_pod_whose_cards_are_a_claims_is_nobodys_to_adopt() -> None:
    mapping = {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    backed = {"resourceClaimName": "p-x", "requestMappings": [mapping]}
    held = with_uid(claim("p-x", result("gpu-0")))

    found = account([whole("p", extendedResourceClaimStatus=backed)], held)

    assert found.pods == ()
    assert list(found.ledger.table.memory_used) == [16_000, 0]


def test_a_card_that_claims_and_pods_overfill_names_both() -> None:
    claims = [with_uid(claim(name, result(f"gpu-{i}"))) for i, name in enumerate("xy")]

    (over,) = account([whole("p")], *claims).overfull

    assert set(over.pods) in ({"d/p", "claim d/x"}, {"d/p", "claim d/y"})
