"""Converts configurations of the original systems and of older kube-schedulers.

Input: `--policy-config-file` (kind Policy), KubeSchedulerConfiguration of any version, ConfigMaps
with either, and Elastic GPU's load-aware policy. Output: a KubeSchedulerConfiguration v1 for
kube-scheduler, a WeftConfiguration for Weft, and each setting that neither can express, with the
reason."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from weft.cluster.config.form import API_VERSION, DEFAULT_ROUTES, KIND
from weft.cluster.config.old_kube_scheduler import (
    KubeSchedulerImport,
    LeftOut,
    entries,
    import_kube_scheduler,
    import_policy,
    part,
)
from weft.files.yaml_text import BrokenYamlError, load
from weft.model import BadInputError

LOAD_AWARE = "nano-load-binpack"
"""Policy that replaces Elastic GPU's load-aware policy."""
_LOAD_METRICS = ("gpu_core_usage_avg", "gpu_memory_usage_avg")
_ORIGINAL_PORTS = ("39999", "12345", "32766")


class ImportedConfiguration(msgspec.Struct, frozen=True):
    """Result of an import: both configurations (None if nothing belongs there), and the settings
    left out."""

    kube_scheduler: dict[str, Any] | None
    weft: dict[str, Any] | None
    left_out: tuple[LeftOut, ...]


class _Collected:
    """Settings collected from all documents of one file."""

    def __init__(self) -> None:
        self.kube_scheduler: KubeSchedulerImport | None = None
        self.profiles: dict[str, str] = {}
        self.routes: dict[str, str] = {}
        self.original_ports = False
        self.left_out: list[LeftOut] = []
        self.known = False

    def take(self, imported: KubeSchedulerImport, place: str) -> None:
        """Add a kube-scheduler configuration; only the first of a file counts, because a
        kube-scheduler reads one."""
        self.known = True
        self.left_out += imported.left_out
        if self.kube_scheduler is not None:
            why = "a kube-scheduler reads one configuration; the first of the file is carried over"
            self.left_out.append(LeftOut(place, "KubeSchedulerConfiguration", why))
            return
        self.kube_scheduler = imported
        self.profiles |= imported.weft_profiles
        for extender in imported.extenders:
            url = str(extender.get("urlPrefix", ""))
            path = "/" + url.partition("://")[2].partition("/")[2].strip("/")
            if path in DEFAULT_ROUTES:
                self.routes[path] = DEFAULT_ROUTES[path]
                self.original_ports |= any(f":{port}" in url for port in _ORIGINAL_PORTS)


def import_configuration(text: bytes, where: str) -> ImportedConfiguration:
    """Convert this text; `BadInputError` if it contains no known scheduler configuration."""
    collected = _Collected()
    for number, document in enumerate(_documents(text, where), 1):
        try:
            _take(document, f"document {number}", collected)
        except BadInputError as error:
            raise BadInputError(f"{where}, {error.where}", error.problem) from None
    if not collected.known:
        raise BadInputError(
            where,
            "holds no scheduler configuration of a known kind: neither a "
            "KubeSchedulerConfiguration, nor a Policy, nor Elastic GPU's load-aware policy, "
            "alone or in a ConfigMap",
        )
    kube_scheduler = collected.kube_scheduler
    return ImportedConfiguration(
        kube_scheduler.configuration if kube_scheduler is not None else None,
        _weft(collected),
        tuple(collected.left_out),
    )


def _documents(text: bytes, where: str) -> Iterator[Any]:
    """Yield the decoded documents of the file; JSON is valid YAML."""
    try:
        whole = text.decode()
    except UnicodeDecodeError as error:
        raise BadInputError(where, f"is not UTF-8 text: {error.reason}") from None
    first = 0
    for written in _split(whole):
        try:
            document = load(written, first)
        except BrokenYamlError as error:
            at = f"{where}, line {error.line + 1}" if error.line is not None else where
            raise BadInputError(at, f"is not YAML: {error}") from None
        except BadInputError as error:
            raise BadInputError(f"{where}, {error.where}", error.problem) from None
        if document is not None:
            yield document
        first += written.count("\n") + 1


def _split(text: str) -> Iterator[str]:
    lines: list[str] = []
    for line in text.splitlines():
        if line.rstrip() == "---":
            yield "\n".join(lines)
            lines = []
        else:
            lines.append(line)
    yield "\n".join(lines)


def _take(document: Any, place: str, collected: _Collected) -> None:
    if not isinstance(document, Mapping):
        collected.left_out.append(LeftOut(place, str(document)[:40], "is not an object"))
        return
    kind, version = str(document.get("kind", "")), str(document.get("apiVersion", ""))
    if kind == "Policy" and not version.startswith("policy/"):
        collected.take(import_policy(document, place), place)
    elif kind == "KubeSchedulerConfiguration":
        collected.take(import_kube_scheduler(document, place), place)
    elif kind == "ConfigMap":
        _take_config_map(document, place, collected)
    elif _is_load_aware(document):
        _take_load_aware(document, place, collected)
    elif kind == "List":
        for at, item in entries(document, "items", place):
            _take(item, at, collected)
    else:
        name = part(document, "metadata", place).get("name", "")
        why = "is not a scheduler configuration: Weft's own manifests include what it needs"
        collected.left_out.append(LeftOut(place, f"{kind} {name}".strip(), why))


def _take_config_map(document: Mapping[str, Any], place: str, collected: _Collected) -> None:
    """Add those values of a ConfigMap that are configurations themselves."""
    for key, value in part(document, "data", place).items():
        at = f"{place}.data[{key}]"
        try:
            inner = load(str(value))
        except (BrokenYamlError, BadInputError):
            inner = None
        if isinstance(inner, Mapping):
            _take(inner, at, collected)
        else:
            collected.left_out.append(LeftOut(at, "", "is not a scheduler configuration"))


def _is_load_aware(document: Mapping[str, Any]) -> bool:
    spec = document.get("spec")
    return isinstance(spec, Mapping) and isinstance(spec.get("syncPeriod"), list)


def _take_load_aware(document: Mapping[str, Any], place: str, collected: _Collected) -> None:
    """Add Elastic GPU's load-aware policy: `LOAD_AWARE` reads the same two metrics."""
    collected.known = True
    collected.routes["/scheduler"] = LOAD_AWARE
    spec = document["spec"]
    for at, entry in entries(spec, "syncPeriod", f"{place}.spec"):
        name = str(entry.get("name", ""))
        if name not in _LOAD_METRICS:
            why = f"{LOAD_AWARE} reads {' and '.join(_LOAD_METRICS)} only"
            collected.left_out.append(LeftOut(f"{at}.name", name, why))
        elif "period" in entry:
            why = "all metrics are read every telemetry.intervalSeconds; set that instead"
            collected.left_out.append(LeftOut(f"{at}.period", str(entry["period"]), why))
    for at, entry in entries(spec, "priority", f"{place}.spec"):
        name = str(entry.get("name", ""))
        why = f"{LOAD_AWARE} weighs its metrics like Elastic GPU's code, which ignored weights"
        collected.left_out.append(LeftOut(at, name, why))
    for key in spec:
        if key not in ("syncPeriod", "priority"):
            why = "is not part of the load-aware policy"
            collected.left_out.append(LeftOut(f"{place}.spec.{key}", str(spec[key])[:40], why))


def _weft(collected: _Collected) -> dict[str, Any] | None:
    """Return the WeftConfiguration with the settings that differ from the defaults; None if there
    are none."""
    if not collected.profiles and not collected.routes:
        return None
    configuration: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    if collected.profiles:
        configuration["profiles"] = [
            {"schedulerName": name, "policies": [{"name": policy}]}
            for name, policy in collected.profiles.items()
        ]
    if collected.routes:
        extender: dict[str, Any] = {"enabled": True}
        if collected.original_ports:
            extender["originalPorts"] = True
        configuration["extender"] = extender | {"routes": collected.routes}
    return configuration
