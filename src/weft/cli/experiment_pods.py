"""Pods of manifests as the jobs of an experiment, read as `weft parse` reads them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from weft.model.errors import BadInputError

if TYPE_CHECKING:
    from weft.model import PodRequest

SUFFIXES = (".yaml", ".yml", ".json")


def read_pods(path: Path) -> "list[PodRequest]":
    """Every pod that asks for GPUs in a file or the files of a folder, each replica of a workload.

    `BadInputError` names the file, the document and the field of the first that is broken.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    pods = [
        pod
        for file in files
        if file.is_file() and file.suffix.lower() in SUFFIXES
        for pod in _pods_of(file)
    ]
    if not pods:
        raise BadInputError(str(path), f"has no pods that ask for GPUs in {', '.join(SUFFIXES)}")
    return pods


def _pods_of(file: Path) -> "Iterator[PodRequest]":
    from weft.cli.manifests import load, manifest_of, pods_in, replicas_of, split
    from weft.cluster.state import pod_reader
    from weft.cluster.state.pod_reader import UnknownVolumes
    from weft.dialects.dialect import DialectSettings
    from weft.files.reading import read_text

    for document in split(read_text(file)):
        try:
            for pod in pods_in(load(document)):
                request = pod_reader.read(manifest_of(pod), DialectSettings(), UnknownVolumes())
                if not request.shape.gpu_requests:
                    continue
                name = f"{pod.kind.lower()}-{pod.name}"
                for _ in range(replicas_of(pod) or 1):
                    yield msgspec.structs.replace(request, name=name)
        except BadInputError as error:
            where = f"{file}: {document.place}" + (f": {error.where}" if error.where else "")
            raise BadInputError(where, error.problem) from None
