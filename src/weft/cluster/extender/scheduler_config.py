"""Generates kube-scheduler's configuration for Weft: one extender for all dialects, because
kube-scheduler allows only one that binds.

kube-scheduler calls an extender for pods that request one of its managed resources. Pods that
request by label (Genius, Kube-Knots) request none: with one of those dialects the list of managed
resources is empty, which means every pod of the cluster."""

from pathlib import PurePosixPath
from typing import Any

import msgspec

from weft.cluster.config.form import DEFAULT_PROFILES
from weft.dialects.catalog import ALL
from weft.dialects.system import BaseDialect
from weft.model import BadInputError
from weft.model.nearest import unknown

API_VERSION = "kubescheduler.config.k8s.io/v1"
GPU = "nvidia.com/gpu"
CHOICES = tuple(system.name for system in ALL)

# Resources for the node's accounting, which pods do not request.
BOOKKEEPING = ("aliyun.com/gpu-count",)


class TlsFiles(msgspec.Struct, frozen=True):
    """TLS files on kube-scheduler's machine; a client certificate is needed only if Weft requires
    one."""

    authority: PurePosixPath
    certificate: PurePosixPath | None = None
    key: PurePosixPath | None = None
    server_name: str = ""


class SchedulerConfigOptions(msgspec.Struct, frozen=True):
    """Options of the generated configuration.

    `url`: Weft's address for kube-scheduler, without the path. `weight`: of Weft's scores relative
    to kube-scheduler's own plugins; an extender's 10 counts as much as a plugin's 100. `timeout_s`:
    of one call; a bind answers after the API server does. `advertised`: nodes report the dialects'
    resources, which needs a device plugin or Weft's agent. `profiles`: kube-scheduler also serves
    the systems' schedulerNames."""

    dialects: tuple[str, ...]
    url: str
    tls: TlsFiles | None = None
    weight: int = 1
    timeout_s: int = 30
    advertised: bool = True
    profiles: bool = True


def configuration(wishes: SchedulerConfigOptions) -> dict[str, Any]:
    """Build a KubeSchedulerConfiguration; `BadInputError` for an unknown dialect."""
    systems = [_system(name) for name in dict.fromkeys(wishes.dialects)]
    if not systems:
        raise BadInputError("--dialects", f"is empty; write some of {', '.join(CHOICES)}")
    names = _names(systems) if wishes.profiles else []
    profiles = [{"schedulerName": name} for name in ("default-scheduler", *names)]
    return {
        "apiVersion": API_VERSION,
        "kind": "KubeSchedulerConfiguration",
        "profiles": profiles,
        "extenders": [_extender(wishes, systems)],
    }


def taken_twice(wishes: SchedulerConfigOptions) -> list[str]:
    """Return schedulerNames that both this configuration and `weft scheduler`'s defaults serve.

    Two schedulers with one name would both bind its pods."""
    ours = {profile.scheduler_name for profile in DEFAULT_PROFILES}
    names = _names([_system(name) for name in wishes.dialects]) if wishes.profiles else []
    return [name for name in names if name in ours]


def _names(systems: list[BaseDialect]) -> list[str]:
    return list(dict.fromkeys(name for system in systems for name in system.scheduler_names))


def _extender(wishes: SchedulerConfigOptions, systems: list[BaseDialect]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "urlPrefix": f"{wishes.url.rstrip('/')}/weft",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "preemptVerb": "preempt",
        "weight": wishes.weight,
        "httpTimeout": f"{wishes.timeout_s}s",
        "nodeCacheCapable": True,
        "ignorable": False,
    }
    if wishes.tls is not None:
        entry |= {"enableHTTPS": True, "tlsConfig": _tls(wishes.tls)}
    managed = _managed(wishes, systems)
    return entry | {"managedResources": managed} if managed else entry


def _managed(wishes: SchedulerConfigOptions, systems: list[BaseDialect]) -> list[dict[str, Any]]:
    """Return the resources for which kube-scheduler calls Weft; [] (every pod) if pods may request
    by label."""
    if any(system.asks_by_name for system in systems):
        return []
    names = {name: name in _reported(system) for system in systems for name in _resources(system)}
    return [
        {"name": name, "ignoredByScheduler": name != GPU and not (wishes.advertised and reported)}
        for name, reported in names.items()
        if name not in BOOKKEEPING
    ]


def _resources(system: BaseDialect) -> tuple[str, ...]:
    if system.name == "coscheml":
        return _system("gpushare").resources
    return tuple(dict.fromkeys((*system.counted, *system.resources)))


def _reported(system: BaseDialect) -> tuple[str, ...]:
    """Return resources that nodes report as allocatable; kube-scheduler must check only these."""
    return system.counted or system.resources


def _tls(files: TlsFiles) -> dict[str, Any]:
    tls_config = {"caFile": str(files.authority)}
    if files.certificate is not None and files.key is not None:
        tls_config |= {"certFile": str(files.certificate), "keyFile": str(files.key)}
    if files.server_name:
        tls_config["serverName"] = files.server_name
    return tls_config


def _system(name: str) -> BaseDialect:
    for system in ALL:
        if system.name == name:
            return system
    raise BadInputError("--dialects", unknown(name, CHOICES, "write some of"))
