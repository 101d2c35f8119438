"""Reads the files that a configuration names, and builds the live cluster that it describes.

configuration ──▶ plan: files, profiles, the extender's routes ──▶ cluster with a leader's parts
"""

import socket
import uuid
from pathlib import Path

import msgspec

from weft.cluster.config.form import Configuration, LeaseSettings
from weft.cluster.config.gpu_links import links_rules
from weft.cluster.config.made_profiles import maker
from weft.cluster.config.made_profiles import profiles as made_of
from weft.cluster.control.live_cluster import EngineCluster
from weft.cluster.control.options import EngineClusterOptions
from weft.cluster.extender.routes import Route, route_profiles
from weft.cluster.extender.setup import routes_of
from weft.cluster.leader.leader_parts import LeaderParts
from weft.cluster.telemetry.prediction_reload import LoadedPredictions, PredictionFiles
from weft.core.framework import Profile
from weft.core.framework.registry import Registry
from weft.core.ledger import RequestLimits
from weft.dialects.inventory import InventoryFallback
from weft.host.prediction_files import files_of
from weft.kube.bind import BindOptions
from weft.kube.client import ApiClient
from weft.kube.configmap import OwnConfigMap
from weft.kube.lease import Elector, LeaseOptions
from weft.model import BadInputError


class Hosting(msgspec.Struct, frozen=True):
    """Options of the command line, in addition to the configuration.

    `schedules` is False for a process that only answers kube-scheduler as its extender. `decisions`
    is the file that records all decisions, up to `decisions_mib` (0: no limit). `where` names the
    configuration file in errors.
    """

    kubeconfigs: tuple[Path, ...] = ()
    context: str = ""
    where: str = ""
    decisions: Path | None = None
    decisions_mib: int = 0
    schedules: bool = True


class SchedulerPlan(msgspec.Struct, frozen=True):
    """The configuration and its files, read before any connection is made.

    `profiles` are those of the configuration and of the extender's routes; `names` the
    schedulerNames whose pods are scheduled by this process.
    """

    config: Configuration
    hosting: Hosting
    files: PredictionFiles
    predictions: LoadedPredictions
    profiles: tuple[Profile, ...]
    names: tuple[str, ...]
    routes: tuple[Route, ...]
    limits: RequestLimits


def plan_of(config: Configuration, registry: Registry, hosting: Hosting) -> SchedulerPlan:
    """Read the files that the configuration names and return the plan; `BadInputError` if anything
    in the configuration or the files is wrong."""
    files = files_of(config, hosting.where)
    predictions = files.read()
    predicted, routes = config.interference.predicted, []
    if config.extender.enabled:
        routes = routes_of(config.extender, registry.names(), predicted=predicted)
    profiles = made_of(config, registry, hosting.where)
    names = tuple(profile.name for profile in profiles)
    return SchedulerPlan(
        config,
        hosting,
        files,
        predictions,
        (*profiles, *route_profiles(routes, maker(config, registry), names)),
        taken_here(config, hosting),
        tuple(routes),
        RequestLimits.declared(
            round(1000 * config.limits.overcommit), round(1000 * config.limits.harvest)
        ),
    )


def taken_here(config: Configuration, hosting: Hosting) -> tuple[str, ...]:
    """Return the schedulerNames whose pods this process schedules; kube-scheduler schedules those
    of profiles with `via: extender`."""
    asked = [p.scheduler_name for p in config.profiles if p.via == "extender"]
    if asked and not config.extender.enabled:
        what = f"{asked[0]} is via: extender, but the extender is off; set extender.enabled: true"
        raise BadInputError(f"{hosting.where}: profiles" if hosting.where else "profiles", what)
    ours = tuple(p.scheduler_name for p in config.profiles if p.via == "scheduler")
    return ours if hosting.schedules else ()


def cluster_of(plan: SchedulerPlan, client: ApiClient, elector: Elector | None) -> LeaderParts:
    """Build the live cluster that the plan describes, with a leader's parts."""
    config = plan.config
    options = EngineClusterOptions(
        names=plan.names,
        seed=config.seed,
        rules=[
            InventoryFallback(r.count, r.memory_mib, r.model, r.nodes, r.labels)
            for r in config.inventory
        ],
        links=links_rules(config.gpu_links),
        gpushare_unit=config.gpushare_unit,
        volcano_memory_factor=config.volcano_memory_factor,
        binding=BindOptions(
            in_flight=config.client.binds_in_flight,
            request_timeout_s=config.client.request_timeout_seconds,
        ),
        limits=plan.limits,
        queues=config.queues.rules(),
        head_of_line=config.queue.rules(),
        moves=config.queue.moves(),
        gang_pods=config.queue.gang_pods,
        interference=plan.predictions.interference is not None,
        volume_timeout_s=config.volumes.timeout_seconds,
    )
    return LeaderParts(
        EngineCluster(client, plan.profiles, lease=elector, options=options),
        config_map=own_config_map(client, config, config.oom_history.name),
        past_scheduler=config.past_scheduler,
        group_status=config.queue.pod_group_status,
    )


def reading_cluster(
    config: Configuration, registry: Registry, client: ApiClient, where: str = ""
) -> LeaderParts:
    """Build the cluster as `weft scheduler` would, but only for reading, without lease or
    recording.

    `where` names the configuration file in errors.
    """
    plan = plan_of(config, registry, Hosting(where=where))
    return cluster_of(plan, client, None)


def elector_of(client: ApiClient, lease: LeaseSettings) -> Elector:
    """Build an elector with a unique identity: the host name and a random part."""
    options = LeaseOptions(lease.namespace, lease.name, lease.duration_seconds, lease.renew_seconds)
    return Elector(client, f"{socket.gethostname()}_{uuid.uuid4()}", options)


def own_config_map(client: ApiClient, config: Configuration, name: str) -> OwnConfigMap | None:
    """Return the ConfigMap of this name in the Lease's namespace; None if the name is empty."""
    return OwnConfigMap(client, config.lease.namespace, name) if name else None
