"""Manifests of users of the five systems: `examples/`, in the form of each system's own documents.

`pods_of(text)` makes of workloads the pods that their controllers would make; there is no
controller here.
"""

from pathlib import Path

import msgspec
from kube_api import Object, Objects

from weft.cluster.state.manifests import load, pods_in, split

EXAMPLES = Path(__file__).parents[2] / "examples"


def _example(name: str) -> str:
    return (EXAMPLES / f"{name}.yaml").read_text()


ELASTIC = _example("elastic/pods")
GPUSHARE = _example("gpushare/pods")
GPUSHARE_MIB = _example("gpushare/pods-in-mib")
COSCHEML = _example("coscheml/pods")
ALNAIR = _example("alnair/pods")
GENIUS = _example("genius/pods")
KUBEKNOTS = _example("kubeknots/pods")
PLAIN = _example("nvidia/pods")

EVERY_MANIFEST = (ELASTIC, GPUSHARE, GPUSHARE_MIB, COSCHEML, ALNAIR, GENIUS, KUBEKNOTS, PLAIN)


def pods_of(text: str) -> Objects:
    """The pods of these documents: a template's as often as its workload wants replicas."""
    found: Objects = []
    for document in split(text):
        whole = load(document)
        for one in pods_in(whole):
            replicas = whole.get("spec", {}).get("replicas", 1) if one.kind != "Pod" else 1
            for number in range(replicas):
                name = one.name if one.kind == "Pod" else f"{one.name}-{number}"
                found.append(_as_made(one.value, name))
    return found


def _as_made(template: Object, name: str) -> Object:
    """The template as a pod of this name. A pod's restartPolicy is what the template says."""
    made: Object = msgspec.json.decode(msgspec.json.encode(template))
    made |= {"apiVersion": "v1", "kind": "Pod"}
    made["metadata"] = {**made.get("metadata", {}), "name": name}
    return made
