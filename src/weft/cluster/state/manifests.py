"""Reads the pods and workloads in manifests (YAML documents), and reports mistakes in them.

Every mistake is a `BadInputError` that names the line or the field, and what to write instead.
"""

import difflib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from weft.cluster.state import pod_reader
from weft.cluster.state.groups import GROUP_KINDS, ObjectKey, api_group
from weft.cluster.state.pod_reader import UnknownVolumes
from weft.dialects.dialect import DialectSettings
from weft.dialects.group_objects import GroupPolicy, KubePodGroup, policy_of
from weft.files import yaml_text
from weft.files.reading import read_text
from weft.kube.pods import Pod
from weft.model import BadInputError, PodRequest

WORKLOADS = {
    **dict.fromkeys(
        ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Job"),
        ("spec", "template"),
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "PodTemplate": ("template",),
}
"""The place of the pod template in each of Kubernetes' own workloads."""


class PodCount(NamedTuple):
    """A number of pods that a workload states at `field`; `at_most` is a Job's completions."""

    field: str
    number: Any
    at_most: Any = None


class ManifestPod(NamedTuple):
    """A pod, or a workload's pod template, with the kind and name of the object it is in.

    `field` is the pod's place in the object; `containers` the place of its containers in `value`.
    The product of `counts` is how many such pods run at once. `claim_templates` are a
    StatefulSet's, as written: each pod gets its own claims from them.
    """

    kind: str
    name: str
    value: dict[str, Any]
    field: str = ""
    containers: tuple[str, ...] = ("spec", "containers")
    namespace: str = ""
    counts: tuple[PodCount, ...] = ()
    claim_templates: tuple[Any, ...] = ()


class Document(NamedTuple):
    """One document of a file: its name for people, its text, and its first line (from 0)."""

    place: str
    text: str
    first_line: int = 0


def split(text: str) -> Iterator[Document]:
    """Yield the documents of a file as text, so that one broken document does not hide the
    others."""
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if re.match(r"---(\s|$)", line)]
    number = 0
    for start, end in itertools.pairwise([0, *starts, len(lines)]):
        part = lines[start:end]
        if any(map(_says_something, part)):
            number += 1
            yield Document(f"document {number}", "\n".join(part), start)


def _says_something(line: str) -> bool:
    """Return True if the line is more than a document marker, a directive or a comment."""
    rest = re.sub(r"^(---(?=\s|$)|\.\.\.$|%.*)", "", line).strip()
    return bool(rest) and not rest.startswith("#")


def load(document: Document) -> Any:
    """Return a YAML document as plain values; times stay text, as in the Kubernetes API."""
    try:
        return yaml_text.load(document.text, document.first_line)
    except yaml_text.BrokenYamlError as broken:
        if broken.line is None:
            raise BadInputError("", f"is not YAML: {broken}") from None
        raise _bad_yaml(document, broken.line, broken.problem) from None


def _bad_yaml(document: Document, line: int, problem: str) -> BadInputError:
    """Return an error that names the line, and says how to correct mistakes that are common in old
    READMEs."""
    lines, first = document.text.splitlines(), document.first_line
    # Parsers often report a broken line at the next one.
    near = [n for n in (line, line - 1) if 0 <= n < len(lines)]
    for n in near:
        field, _, value = lines[n].partition(":")
        if "//" in value and value.partition("//")[0].strip():
            good = value.partition("//")[0].strip()
            return BadInputError(
                f"line {first + n + 1}, {field.strip(' -')}",
                f"{value.strip()!r} is not YAML: // starts no comment; write {good} "
                "(a comment starts with #)",
            )
    whole = lines[line] if line < len(lines) else "the end"
    shown = whole.strip()
    field = shown.partition(":")[0].strip(" -") if ":" in shown else ""
    fix = "check quotes and indentation here"
    if "\t" in whole[: len(whole) - len(whole.lstrip())]:
        fix = "indent with spaces"
    elif "escape" in problem:
        fix = "write the character itself"
    place = f"line {first + line + 1}" + (f", {field}" if field else "")
    return BadInputError(place, f"{shown!r} is not YAML ({problem}); {fix}")


def pods_in(value: Any, above: str = "") -> Iterator[ManifestPod]:
    """Yield every pod and pod template in a document, workloads of any kind included."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise BadInputError("", f"is a {type(value).__name__}, not a Kubernetes object")
    kind = str(value.get("kind", above))
    meta = value.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    name = str(meta.get("name") or meta.get("generateName") or "")
    namespace = str(meta.get("namespace") or "")
    if isinstance(value.get("items"), list) and (kind.endswith("List") or not kind):
        for item in value["items"]:
            yield from pods_in(item, kind.removesuffix("List"))
    elif kind == "Pod":
        yield ManifestPod(kind, name, value, namespace=namespace)
    else:
        templates = list(_templates(value, _Place()))
        for place, template in templates:
            part = "/".join(place.path)
            pod_name = f"{name}/{part}" if len(templates) > 1 and part else name
            yield ManifestPod(
                kind,
                pod_name,
                template,
                place.field,
                namespace=namespace,
                counts=place.counts,
                claim_templates=_claim_templates(value) if kind == "StatefulSet" else (),
            )
        if not templates and kind in WORKLOADS and _is_kubernetes_own(value):
            yield ManifestPod(kind, name, value, "", (*WORKLOADS[kind], "spec", "containers"))


def pod_groups_in(value: Any) -> Iterator[tuple[ObjectKey, GroupPolicy]]:
    """Yield every PodGroup in a document, of any system; objects that cannot be read as one are
    skipped."""
    if not isinstance(value, dict):
        return
    if isinstance(value.get("items"), list):
        for item in value["items"]:
            yield from pod_groups_in(item)
    group = str(value.get("apiVersion", "")).partition("/")[0]
    systems = [each for each, kinds in GROUP_KINDS.items() if api_group(kinds[0]) == group]
    if value.get("kind") != "PodGroup" or not systems:
        return
    try:
        read = msgspec.convert(_without_nulls(value), KubePodGroup)
    except (msgspec.ValidationError, RecursionError):
        return
    key = (systems[0], read.metadata.namespace or "default", read.metadata.name)
    yield key, policy_of(systems[0], read)


def _is_kubernetes_own(value: dict[str, Any]) -> bool:
    """Return True if an object is of an API group of Kubernetes itself. Other systems have kinds of
    the same names, such as Volcano's Job."""
    group, slash, _ = str(value.get("apiVersion") or "").partition("/")
    return not slash or group in ("apps", "batch", "extensions")


class _Place(NamedTuple):
    """A place in an object: the names on the way there that tell several pod templates apart, the
    field's path, and the numbers of pods that the object states on the way."""

    path: tuple[str, ...] = ()
    field: str = ""
    counts: tuple[PodCount, ...] = ()

    def below(self, step: str, name: str | None = None) -> "_Place":
        path = self.path if name is None else (*self.path, name)
        return _Place(path, self.field + step if self.field else step.lstrip("."), self.counts)

    def counted(self, value: dict[str, Any]) -> "_Place":
        """Return this place, with the number of pods that `value` states next to its pod template
        in replicas or parallelism."""
        said = next((key for key in ("replicas", "parallelism") if value.get(key) is not None), "")
        if not said:
            return self
        count = PodCount(self.below(f".{said}").field, value[said], value.get("completions"))
        return self._replace(counts=(*self.counts, count))


Template = tuple[_Place, dict[str, Any]]


def _templates(value: Any, place: _Place) -> Iterator[Template]:
    """Yield the pod templates below `value`, which is at `place`."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            name = item.get("name") if isinstance(item, dict) else None
            yield from _templates(item, place.below(f"[{i}]", str(name or i)))
        return
    if not isinstance(value, dict):
        return
    for key, below in value.items():
        at = place.counted(value) if key == "template" else place
        steps = key == "templates" and isinstance(below, list)
        plain = steps or key in ("spec", "template", "jobTemplate")
        inside = at.below(f".{key}", None if plain else str(key))
        if key == "template" and isinstance(below, dict) and _is_for_pods(below):
            yield inside, below
        elif steps:
            yield from _argo(below, inside)
        elif isinstance(below, dict | list) and key not in ("metadata", "status"):
            yield from _templates(below, inside)


def _is_for_pods(template: dict[str, Any]) -> bool:
    """Return True if a template is a pod's: it has a containers field, even if that is empty or its
    name is misspelled. Objects other than pods have templates, too.

    A misspelled field only counts if it is a list, since templates of other kinds have all sorts of
    fields.
    """
    spec = template.get("spec")
    if not isinstance(spec, dict):
        return False
    if "containers" in spec:
        return spec["containers"] is None or isinstance(spec["containers"], list)
    meant = _meant("containers", spec)
    return meant is not None and isinstance(spec[meant], list)


def _meant(field: str, among: dict[str, Any]) -> str | None:
    """Return the key that is a misspelling of `field`; None if there is none."""
    keys = {str(key).lower(): key for key in among if isinstance(key, str)}
    close = difflib.get_close_matches(field.lower(), keys, n=1, cutoff=0.85)
    return keys[close[0]] if close else None


def _argo(templates: list[Any], place: _Place) -> Iterator[Template]:
    """Yield the pods of Argo workflow steps: one container each, with init containers and
    sidecars."""
    for i, step in enumerate(templates):
        if not isinstance(step, dict):
            continue
        inside = place.below(f"[{i}]", str(step.get("name") or i))
        main = step.get("container") or step.get("script")
        if isinstance(main, dict):
            sidecars = step.get("sidecars")
            container = {**main, "name": main.get("name", "main")}
            spec = {
                "containers": [container, *(sidecars if isinstance(sidecars, list) else ())],
                "initContainers": step.get("initContainers"),
            }
            # No field: the pod is assembled here, so its fields are not those of the step.
            pod = {"metadata": step.get("metadata") or {}, "spec": spec}
            yield inside._replace(field=""), pod
        else:
            yield from _templates(step, inside)


_MOST_PODS = 2**31 - 1  # Kubernetes' limit


def replicas_of(pod: ManifestPod) -> int | None:
    """Return how many of these pods run at once; None for a DaemonSet, which runs one on each of
    its nodes."""
    if pod.kind == "DaemonSet":
        return None
    replicas = 1
    for count in pod.counts:
        for number in (count.number, 0 if count.at_most is None else count.at_most):
            if type(number) is not int or not 0 <= number <= _MOST_PODS:
                problem = f"{number!r} is not a number of pods; write a whole number, 0 or more"
                raise BadInputError(count.field, problem)
        at_most = count.number if count.at_most is None else count.at_most
        replicas *= min(count.number, at_most)
    return replicas


def _claim_templates(value: dict[str, Any]) -> tuple[Any, ...]:
    spec = value.get("spec")
    found = spec.get("volumeClaimTemplates") if isinstance(spec, dict) else None
    return (
        tuple(each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()
    )


def manifest_of(pod: ManifestPod) -> Pod:
    """Return the pod as Weft reads it; raises `BadInputError` with the field, its value and a
    remedy."""
    try:
        _check_containers(pod)
        value = _without_nulls(pod.value)
        try:
            return msgspec.convert(value, Pod)
        except msgspec.ValidationError as broken:
            raise _bad_field(value, str(broken)) from None
    except BadInputError as error:
        where = f"{pod.field}.{error.where}" if pod.field else error.where
        raise BadInputError(where, error.problem) from None


def _check_containers(pod: ManifestPod) -> None:
    """Refuse a pod without containers, whose field may be misspelled, and a pod with two containers
    of one name."""
    value: Any = pod.value
    for n, step in enumerate(pod.containers):
        field = ".".join(pod.containers[: n + 1])
        below = value.get(step)
        if below is None:
            meant = None if step in value else _meant(step, value)
            fix = f"rename {meant} to {step}" if meant else "a pod needs at least one container"
            raise BadInputError(field, f"is {'empty' if step in value else 'missing'}; {fix}")
        kind = list if step == "containers" else dict
        if not isinstance(below, kind):
            shown = repr(below) if isinstance(below, str | int | float) else type(below).__name__
            shape = "list of containers" if kind is list else "mapping"
            raise BadInputError(field, f"{shown} is not a {shape}; correct its type")
        value = below
    if not any(container is not None for container in value):
        raise BadInputError(field, "is empty; a pod needs at least one container")
    _check_names(pod.value["spec"])


def _check_names(spec: dict[str, Any]) -> None:
    """Refuse two containers of one name, init containers included."""
    taken: dict[str, str] = {}
    for part in ("initContainers", "containers"):
        listed = spec.get(part)
        for i, container in enumerate(listed if isinstance(listed, list) else ()):
            name = container.get("name") if isinstance(container, dict) else None
            field = f"spec.{part}[{i}].name"
            if not isinstance(name, str) or not name:
                continue
            if name in taken:
                raise BadInputError(field, f"{name!r} is also {taken[name]}; rename one of them")
            taken[name] = field


def _without_nulls(value: Any) -> Any:
    """Return the value without empty fields (`labels:`), which Kubernetes reads as absent, and with
    keys as text, as in JSON."""
    if isinstance(value, dict):
        return {_text(k): _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value if item is not None]
    return value


def _text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _bad_field(pod: dict[str, Any], problem: str) -> BadInputError:
    """Return an error with the field's path and value from the decoder's message `problem`, if they
    can be found."""
    reason, _, path = problem.partition(" - at `")
    allowed = (str,) if "Expected `str`" in reason else (str, int, float)
    value: Any = pod
    field = ""
    for step in re.findall(r"[^.\[\]`$]+|\[\d+\]|\[\.\.\.\]", path):
        if step == "[...]":  # an unnamed key of a mapping: take the first with an unexpected type
            key = next((k for k, v in value.items() if type(v) not in allowed), "...")
            value, field = value.get(key), f"{field}[{key}]"
        elif step.startswith("["):
            value, field = value[int(step[1:-1])], field + step
        else:
            value, field = value.get(step), f"{field}.{step}" if field else step
    shown = f"{value!r}: " if isinstance(value, str | int | float) else ""
    fix = "put it in quotes" if "Expected `str`" in reason else "correct its type"
    return BadInputError(field or "manifest", f"{shown}{reason[:1].lower()}{reason[1:]}; {fix}")


SUFFIXES = (".yaml", ".yml", ".json")


def read_pods(path: Path) -> list[PodRequest]:
    """Return every pod that requests GPUs in a file or the files of a folder, once for each replica
    of a workload.

    Raises `BadInputError` with the file, document and field of the first mistake.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    pods = [
        pod
        for file in files
        if file.is_file() and file.suffix.lower() in SUFFIXES
        for pod in _pods_of(file)
    ]
    if not pods:
        raise BadInputError(
            str(path), f"no file ({', '.join(SUFFIXES)}) has pods that request GPUs"
        )
    return pods


def _pods_of(file: Path) -> Iterator[PodRequest]:
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
