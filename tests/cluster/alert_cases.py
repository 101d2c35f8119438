"""A case for each alert of deploy/monitoring/rules.yaml, as series that Prometheus would have.

`HEALTHY` is a cluster on which nothing is wrong, a sample a minute for two hours in promtool's own
words (`0+1x120`: 0, 1, … 120). A case says which series are otherwise when its alert must fire.
"""

from typing import NamedTuple

MINUTES = 120
_LEADER, _FOLLOWER = '{job="weft-scheduler",instance="s0"', '{job="weft-scheduler",instance="s1"'
_AGENT = '{job="weft-agent",instance="gpu-1"'


def _checked(policy: str, action: str, error: str = "") -> str:
    """The API server's count of what an admission policy said."""
    error = error or {"deny": "invalid_error"}.get(action, "no_error")  # the real one calls it so
    labels = f'policy="{policy}",enforcement_action="{action}",error_type="{error}"'
    return f"apiserver_validating_admission_policy_check_total{{{labels}}}"


def _both(series: dict[str, str]) -> dict[str, str]:
    """Series of both schedulers: labels after the name, if any, end in a comma."""
    made = {}
    for name, values in series.items():
        metric, _, labels = name.partition("{")
        more = f",{labels.rstrip('}')}" if labels else ""
        for process in (_LEADER, _FOLLOWER):
            made[f"{metric}{process}{more}}}"] = values
    return made


HEALTHY = {
    f'leader_election_master_status{_LEADER},name="weft"}}': "1x120",
    f'leader_election_master_status{_FOLLOWER},name="weft"}}': "0x120",
    'leader_election_master_status{job="kube-scheduler",name="kube-scheduler"}': "1x120",
    'up{job="prometheus",instance="p"}': "1x120",
    f"up{_AGENT}}}": "1x120",
    'up{job="weft-agent",instance="gpu-2"}': "1x120",
    **_both(
        {
            "up": "1x120",
            "weft_ready": "1x120",
            'rest_client_requests_total{code="200"}': "0+600x120",
            'rest_client_requests_total{code="409"}': "0+60x120",
            'rest_client_requests_total{code="<error>"}': "0+1x120",
            'weft_binds_total{outcome="Bound"}': "0+60x120",
            'weft_binds_total{outcome="Conflict"}': "0+1x120",
            'weft_pending_pods_oldest_seconds{reason="GPU_MEMORY"}': "0x60 900x60",
            "weft_pods_stuck": "0x120",
            "weft_pod_faults_total": "3x120",
            "weft_decision_faults_total": "3x120",
            'weft_watch_skipped_objects_total{resource="pods"}': "2x120",
            "weft_gpus_overbooked": "0x120",
            'weft_evictions_total{outcome="evicted"}': "1x120",
            'weft_evictions_total{outcome="blocked"}': "1x120",
            'weft_recalls_total{outcome="evicted"}': "0x60 2x60",
            'weft_recalls_total{outcome="blocked"}': "7x120",
            'weft_slowness_evictions_total{outcome="evicted"}': "3x120",
            'weft_slowness_evictions_total{outcome="failed"}': "1x120",
            'weft_ledger_gpus{node="gpu-1"}': "8x120",
            'weft_ledger_gpus{node="gpu-2"}': "8x120",
            'weft_ledger_gpus_out_of_service{node="gpu-1"}': "0x120",
            'weft_node_agent{node="gpu-1"}': "1x120",
            'weft_node_agent{node="gpu-2"}': "1x120",
            "weft_out_of_gpu_memory_total": "0x60 2x60",
            "weft_observed_slow_pods": "0x115 1x5",
            'weft_lessons_writes_total{outcome="failed"}': "0x120",
            'weft_lessons_writes_total{outcome="written"}': "0+1x120",
            'weft_observed_writes_total{outcome="failed"}': "2x120",
            "weft_lessons_unreadable": "0x120",
            "weft_observed_unreadable_total": "0x120",
            'weft_telemetry_queries_total{result="answered"}': "0+40x120",
            'weft_telemetry_queries_total{result="failed"}': "0+1x120",
            'weft_telemetry_gpus{metric="memory_used_mib",state="fresh"}': "15x120",
            'weft_telemetry_gpus{metric="memory_used_mib",state="stale"}': "1x120",
            'weft_telemetry_gpus{metric="memory_used_mib",state="missing"}': "0x120",
            'weft_telemetry_gpus{metric="sm_active_ratio",state="missing"}': "16x120",
            'weft_interference_reloads_total{result="failed"}': "1x120",
            'weft_extender_requests_total{verb="bind",result="ok"}': "0+60x120",
            'weft_extender_requests_total{verb="bind",result="error"}': "0+2x120",
            'weft_extender_rejected_total{why="http"}': "4x120",
        }
    ),
    f"weft_agent_runtime_connected{_AGENT}}}": "1x120",
    f'weft_agent_containers_total{_AGENT},outcome="given"}}': "0+2x120",
    f'weft_agent_containers_total{_AGENT},outcome="refused"}}': "2x120",
    f'weft_agent_container_starts_total{_AGENT},outcome="refused"}}': "0+1x120",
    f'weft_agent_container_starts_total{_AGENT},outcome="wrong"}}': "0x120",
    f'weft_agent_differences_total{_AGENT},kind="anothers-gpu"}}': "0x120",
    f'weft_agent_differences_total{_AGENT},kind="no-record"}}': "0+1x120",
    f'weft_agent_evictions_total{_AGENT},outcome="evicted"}}': "1x120",
    f'weft_agent_stray_memory_mib{_AGENT},gpu="0",command="Xorg"}}': "60x120",
    f'weft_agent_usage_readings_total{_AGENT},result="read"}}': "0+60x120",
    f'weft_agent_usage_readings_total{_AGENT},result="failed"}}': "3x120",
    f'weft_agent_resource_writes_total{_AGENT},why="changed"}}': "0+1x120",
    f'weft_agent_resource_writes_total{_AGENT},why="put-back"}}': "0x110 1x10",
    f'weft_agent_resource_writes_total{_AGENT},why="failed"}}': "0x120",
    f'weft_agent_part_restarts_total{_AGENT},part="usage"}}': "1x120",
    _checked("weft-placement", "allow"): "0+9x120",
    _checked("weft-placement", "deny"): "5x120",
    _checked("others", "deny"): "0+9x120",
}


class Case(NamedTuple):
    """Series that are otherwise (None: not there), the alert's labels, and its summary then.

    `at` is the minute at which it fires; a minute before `since` it does not yet.
    """

    series: dict[str, str | None]
    labels: dict[str, str]
    summary: str
    at: int = MINUTES
    since: int = 0


def _leads(name: str) -> str:
    """The series of the leader."""
    return next(iter(_both({name: ""})))


def _all(name: str, values: str | None) -> dict[str, str | None]:
    return dict.fromkeys(_both({name: ""}), values)


_NODE = {"instance": "gpu-1"}
_STATUS = "leader_election_master_status"
CASES: dict[str, Case] = {
    "WeftSchedulerDown": Case(
        _all("up", "1x100 0x20"), {}, "No scheduler answers Prometheus", at=104, since=102
    ),
    "WeftNotReady": Case(
        {_leads("weft_ready"): "1x100 0x20"},
        {"job": "weft-scheduler", "instance": "s0"},
        "s0 has not read the cluster yet",
        since=105,
    ),
    "WeftNoLeader": Case(
        {f'{_STATUS}{_LEADER},name="weft"}}': "1x100 0x20"},
        {},
        "No scheduler leads: no pod is bound",
        since=102,
    ),
    "WeftTwoLeaders": Case(
        {f'{_STATUS}{_FOLLOWER},name="weft"}}': "0x100 1x20"},
        {},
        "2 processes lead at once",
        since=103,
    ),
    "WeftLeaderChanges": Case(
        {
            f'{_STATUS}{_LEADER},name="weft"}}': "1x70 0x9 1x9 0x31",
            f'{_STATUS}{_FOLLOWER},name="weft"}}': "0x70 1x9 0x9 1x31",
        },
        {},
        "Leadership changed often within an hour",
    ),
    "WeftApiErrors": Case(
        {_leads('rest_client_requests_total{code="<error>"}'): "0+60x120"},
        {"instance": "s0"},
        "The API server fails s0's requests",
    ),
    "WeftBindingsFail": Case(
        {_leads('weft_binds_total{outcome="Conflict"}'): "0+30x120"},
        {},
        "More than 5 % of bindings fail",
    ),
    "WeftPodsPendingLong": Case(
        {_leads('weft_pending_pods_oldest_seconds{reason="GPU_MEMORY"}'): "0+60x120"},
        {"reason": "GPU_MEMORY"},
        "Pods have waited for half an hour: GPU_MEMORY",
        since=31,
    ),
    "WeftPodsStuck": Case(
        _all("weft_pods_stuck", "0x100 2x20"),
        {},
        "2 pods hold GPUs and cannot end",
        since=110,
    ),
    "WeftFaults": Case(
        {_leads("weft_decision_faults_total"): "3x110 4x10"},
        {},
        "A bug in Weft or a policy keeps pods apart",
        since=111,
    ),
    "WeftObjectsUnreadable": Case(
        _all('weft_watch_skipped_objects_total{resource="pods"}', "2x110 3x10"),
        {"resource": "pods"},
        "Some pods cannot be read",
    ),
    "WeftGpusOverbooked": Case(
        _all("weft_gpus_overbooked", "0x110 1x10"), {}, "1 GPUs hold more than they have", since=112
    ),
    "WeftDoubleBooking": Case(
        {_leads('weft_evictions_total{outcome="evicted"}'): "1x110 2x10"},
        {},
        "Pods were evicted from GPUs that were given away twice",
    ),
    "WeftManyEvictions": Case(
        {_leads('weft_recalls_total{outcome="evicted"}'): "0x60 0+1x60"},
        {},
        "61 pods were evicted within an hour for others' memory or speed",
    ),
    "WeftEvictionsHeldUp": Case(
        {_leads('weft_recalls_total{outcome="blocked"}'): "7x100 7+1x20"},
        {},
        "Pods that should go are kept by a disruption budget or an error",
        since=110,
    ),
    "WeftOutOfGpuMemory": Case(
        {_leads("weft_out_of_gpu_memory_total"): "0x60 0+1x60"},
        {},
        "Containers run out of GPU memory",
    ),
    "WeftPodsSlow": Case(
        {_leads("weft_observed_slow_pods"): "0x90 3x30"},
        {},
        "3 latency-critical pods are slower than their bound",
        since=105,
    ),
    "WeftLearningNotKept": Case(
        {_leads('weft_lessons_writes_total{outcome="failed"}'): "0x90 0+1x30"},
        {},
        "What was learnt cannot be written to its ConfigMap",
        since=105,
    ),
    "WeftLearningUnreadable": Case(
        _all("weft_lessons_unreadable", "0x100 1x20"),
        {},
        "What was learnt cannot be read from its ConfigMap",
    ),
    "WeftTelemetryGone": Case(
        {
            _leads('weft_telemetry_queries_total{result="answered"}'): "0+40x100 4000x20",
            _leads('weft_telemetry_queries_total{result="failed"}'): "0+1x100 100+40x20",
        },
        {"instance": "s0"},
        "s0 gets no answer about the GPUs",
        since=105,
    ),
    "WeftTelemetryStale": Case(
        {
            _leads(f'weft_telemetry_gpus{{metric="memory_used_mib",state="{state}"}}'): values
            for state, values in (("fresh", "15x90 8x30"), ("missing", "0x90 7x30"))
        },
        {},
        "8 GPUs have no fresh metrics",
        since=100,
    ),
    "WeftInterferenceNotReloaded": Case(
        _all('weft_interference_reloads_total{result="failed"}', "1x115 2x5"),
        {},
        "A file of interference is missing or bad; the old one stays in force",
    ),
    "WeftExtenderErrors": Case(
        {_leads('weft_extender_requests_total{verb="bind",result="error"}'): "0+30x120"},
        {"verb": "bind"},
        "kube-scheduler is answered with errors: bind",
    ),
    "WeftExtenderTurnedAway": Case(
        {_leads('weft_extender_rejected_total{why="http"}'): "4x100 4+1x20"},
        {"why": "http"},
        "The extender turns requests away: http",
    ),
    "WeftGpuOutOfService": Case(
        _all('weft_ledger_gpus_out_of_service{node="gpu-1"}', "0x100 1x20"),
        {"node": "gpu-1"},
        "1 GPUs of gpu-1 are out of service",
        since=105,
    ),
    "WeftAgentDown": Case(
        {f"up{_AGENT}}}": "1x100 0x20"},
        {"job": "weft-agent", **_NODE},
        "The agent of gpu-1 does not answer",
        since=105,
    ),
    "WeftAgentMissing": Case(
        {f"up{_AGENT}}}": "1x90 _x30"},
        {"node": "gpu-1"},
        "No agent runs on gpu-1, which says that one delivers there",
        since=100,
    ),
    "WeftRuntimeLost": Case(
        {f"weft_agent_runtime_connected{_AGENT}}}": "1x100 0x20"},
        {"job": "weft-agent", **_NODE},
        "The container runtime of gpu-1 does not ask the agent",
        since=105,
    ),
    "WeftShareRefused": Case(
        {f'weft_agent_containers_total{_AGENT},outcome="refused"}}': "2x110 3x10"},
        _NODE,
        "Containers on gpu-1 are not started: their share cannot be carried out",
    ),
    "WeftWrongGpu": Case(
        {f'weft_agent_differences_total{_AGENT},kind="anothers-gpu"}}': "0x110 1x10"},
        _NODE,
        "A container on gpu-1 was given another's GPU, and is evicted",
    ),
    "WeftRanWithoutShare": Case(
        {f'weft_agent_evictions_total{_AGENT},outcome="evicted"}}': "1x110 2x10"},
        _NODE,
        "Pods ran on gpu-1 without their share",
    ),
    "WeftOverShare": Case(
        {f'weft_agent_over_share_mib{_AGENT},gpu="0",namespace="team",pod="p"}}': "_x100 500x20"},
        {**_NODE, "gpu": "0", "namespace": "team", "pod": "p"},
        "team/p holds 500 MiB more than its share",
        since=105,
    ),
    "WeftStrayMemory": Case(
        {f'weft_agent_stray_memory_mib{_AGENT},gpu="0",command="Xorg"}}': "60x100 2000x20"},
        {**_NODE, "gpu": "0"},
        "Processes of no pod hold 2000 MiB of GPU 0 of gpu-1",
        since=110,
    ),
    "WeftUseUnread": Case(
        {f'weft_agent_usage_readings_total{_AGENT},result="failed"}}': "3x100 3+1x20"},
        _NODE,
        "The use of gpu-1's GPUs cannot be read",
    ),
    "WeftResourcesNotWritten": Case(
        {f'weft_agent_resource_writes_total{_AGENT},why="put-back"}}': "0x100 0+1x20"},
        _NODE,
        "gpu-1's GPU resources are not written, or somebody else changes them",
    ),
    "WeftAgentPartBreaks": Case(
        {f'weft_agent_part_restarts_total{_AGENT},part="usage"}}': "1x100 1+1x20"},
        {**_NODE, "part": "usage"},
        "usage of gpu-1's agent breaks again and again",
    ),
    "WeftForgedShare": Case(
        {_checked("weft-new", "deny"): "_x115 1x5"},  # the first one ever
        {"policy": "weft-new"},
        "Writes that Weft's weft-new denies",
    ),
    "WeftAdmissionBroken": Case(
        {_checked("weft-placement", "allow", "compile_error"): "0x110 0+1x10"},
        {"policy": "weft-placement"},
        "The API server cannot evaluate Weft's weft-placement",
    ),
}
