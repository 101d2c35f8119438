"""What each setting does and why its default is what it is, in one sentence each."""

from weft.model.annotations import SLO_MS

REASONS: dict[str, str] = {
    "apiVersion": "the form of this file; another version is refused, never guessed at",
    "kind": "says that this is a configuration of Weft and no manifest",
    "profiles": "which policies decide for the pods of which schedulerName; pods of other names "
    "are not scheduled, but what they hold is counted",
    "profiles[].schedulerName": "what a pod writes into spec.schedulerName to be decided here",
    "profiles[].policies": "see `weft policies`; the first one queues, breaks ties and picks GPUs",
    "profiles[].policies[].name": "fgd is the default of `weft`: of the policies that look at "
    "requests alone it strands the fewest GPUs for the pods that usually come",
    "profiles[].policies[].weight": "counts where several policies score; each is then normalised "
    "to 0 to 100 first",
    "profiles[].policies[].options": "what this policy can be told; none has to be",
    "gpushareUnit": "what one aliyun.com/gpu-mem is; auto asks each node, which knows its own",
    "compat.elastic": "exact: elastic-binpack scores nodes by the original's formula, and tells "
    "kube-scheduler these scores, which have no bound; sane, for that formula adds MiB to percent",
    "compat.alnair": "exact: all nodes tie, as in the original wherever a container asks for no "
    "vgpu-memory; sane, for the original meant to compare them",
    "compat.genius": "exact: the original's score, which prefers hot cards; sane prefers cool ones",
    "compat.coscheml": "exact: every node counts as if it had one GPU; sane, for most have more",
    "inventory": "GPUs of nodes that no annotation, label or device plugin describes; none, "
    "for most clusters have one of these",
    "inventory[].count": "how many cards each of these nodes has",
    "inventory[].memoryMiB": "the true memory of one card in MiB, as nvidia-smi shows it",
    "inventory[].model": "as pods name it; empty matches only pods that name none",
    "inventory[].nodes": "a shell pattern on the node's name; all nodes",
    "inventory[].labels": "labels that the node must have; none",
    "client.qps": "requests a second to the API server; high, for the server has its own fair "
    "queueing, while kube-scheduler's 50 would bind 50 pods a second",
    "client.burst": "requests at once before qps counts; two seconds' worth",
    "client.bindsInFlight": "bindings at once; the API server's rate is reached with 32",
    "client.requestTimeoutSeconds": "a binding that took longer has no answer and is looked up; "
    "twice this long must fit into the lease",
    "lease.enabled": "whether a Lease decides who binds; on, for two processes run at once in "
    "every rolling update",
    "lease.namespace": "where the Lease is kept; kube-system, beside kube-scheduler's",
    "lease.name": "processes with the same name take turns",
    "lease.durationSeconds": "how long a dead leader is waited for; at most 10",
    "lease.renewSeconds": "time between renewals; three may fail in a row",
    "limits.overcommit": "how much of a card's memory may be promised to pods, whatever is "
    "measured; 1, for pods that then use what they asked for run out of memory",
    "limits.harvest": "how much a harvesting policy may promise, where the difference is measured "
    "idle; 1 lends nothing: whoever wants it declares how far, as 1.5, and borrowers may be "
    "evicted",
    "limits.warmUpSeconds": "so long after its binding a pod needs all that it asked, however "
    "little it uses: most have by then loaded what they will use; more where they take longer",
    "limits.stableSeconds": "and until its memory changed by less than 2 % for so long once; no "
    "longer than telemetry.windowSeconds, or nothing would ever be lent",
    "lessons.name": "of a ConfigMap in lease.namespace: what workloads that ran out of GPU memory "
    "are charged, and the most that pods like each other used, so that a restarted Weft knows; "
    "empty keeps it in memory alone",
    "http.address": "all addresses, so that the kubelet's probes and Prometheus reach it",
    "http.anyoneMayExplain": "lets whoever reaches http.port read why pods of all namespaces are "
    "where they are; off: loopback, or whom the API server lets read /explain",
    "http.port": "health, readiness, metrics and explain; kube-scheduler's own number, 0 for a "
    "free one",
    "extender.enabled": "whether kube-scheduler may ask; off, for nothing listens unasked",
    "extender.address": "loopback, for kube-scheduler on the same machine; any other address "
    "needs clientAuthorityFile: who is answered may bind every pod",
    "extender.port": "Elastic GPU's, so that its kube-scheduler configuration needs no other; 0 "
    "for a free one",
    "extender.originalPorts": "also on 39999 and 12345, as Elastic GPU and gpushare had it; off, "
    "for one port is enough where kube-scheduler is told anew",
    "extender.routes": "path: policy. schedulerName lets the pod's own profile decide, auto is "
    "coscheml once there is a table of interference and gpushare otherwise; else a schedulerName "
    "of profiles, or a policy (the original's -priority spread is spread, random is "
    "random). A path that is left out is not served",
    "extender.interferenceTable": "Co-scheML's table of slowdowns, for routes that are auto; read "
    "only where it is, and where Co-scheML had it",
    "extender.certificateFile": "PEM; with its key the extender speaks HTTPS. None, as the "
    "originals",
    "extender.keyFile": "PEM, of the certificate",
    "extender.clientAuthorityFile": "PEM; only clients with a certificate that it signed are "
    "answered. None: only loopback is",
    "extender.anyoneMayBind": "lets whoever reaches the extender bind pods of all namespaces, as "
    "the originals did; off, for every pod of the cluster reaches it",
    "events.intervalSeconds": "least time between two events or two conditions of one pod and "
    "reason; people read events in minutes",
    "events.scheduled": "an event for every pod that is bound, as kube-scheduler writes",
    "telemetry.url": "a metrics server with Prometheus' API, as it stands before /api/v1; none: no "
    "policy sees what GPUs do, and each decides by requests",
    "telemetry.exporters": "instead of a metrics server, the page of each node's exporter, such as "
    "http://{address}:9400/metrics; for small clusters, for nobody keeps what was before",
    "telemetry.discover": "servers: look for a metrics server among the cluster's Services; "
    "exporters: for the nodes' exporters among its pods. Empty, for whom Weft listens to is yours "
    "to say",
    "telemetry.namespaces": "where discover looks; all, but then nobody is given credentials, or "
    "evicted for the progress that is told, for anyone who may make a Service could ask for them, "
    "or tell it",
    "telemetry.exporterSelectors": "labels of exporters' pods; dcgm-exporter's own and the GPU "
    "operator's",
    "telemetry.intervalSeconds": "time between two looks; policies need no more, and forecasts are "
    "made in these steps",
    "telemetry.scrapeSeconds": "how often the server asks the exporters; a sample older than two "
    "of these is stale, than six (at least a minute) nothing",
    "telemetry.windowSeconds": "how far back peaks and forecasts look; twenty looks, the fewest "
    "that Kube-Knots' rules admit",
    "telemetry.horizonSeconds": "how far ahead forecasts look",
    "telemetry.timeoutSeconds": "an answer that takes longer is none; the next look waits for it",
    "telemetry.username": "of HTTP's basic authentication; none",
    "telemetry.passwordFile": "its password, read again every minute",
    "telemetry.bearerTokenFile": "a token, read again every minute; none",
    "telemetry.authorityFile": "PEM; who signed the server's certificate. None: the system's",
    "telemetry.certificateFile": "PEM; shown to a server that asks who we are. None",
    "telemetry.keyFile": "PEM, of the certificate",
    "telemetry.verify": "whether the certificate is looked at",
    "telemetry.headers": "sent with every question, as X-Scope-OrgID to Mimir; none",
    "telemetry.partialResponse": "Thanos may leave out stores that do not answer; off, for a "
    "missing answer is safer than half of one",
    "telemetry.selector": "goes into each query, where a server knows several clusters, such as "
    'cluster="a"; none',
    "telemetry.names": "what other exporters' metrics mean; the usual ones are known",
    "telemetry.names[].name": "of the exporter's metric",
    "telemetry.names[].metric": "Weft's own name, such as sm_active_ratio",
    "telemetry.names[].scale": "times this is Weft's unit; 0.01 for percent, 0 where it may be "
    "percent or ratio",
    "interference.table": "a table of slowdowns, as Co-scheML has it; none: where the extender has "
    "its table, that one",
    "interference.model": "instead of a table, predictions as Weft writes them; none",
    "interference.profiles": "what applications do alone, as `weft profile` keeps it in a file: "
    "how fast they should go; none: what interference.model has, and what pods say of themselves",
    "interference.mystic": "mystic's distances between applications, for coscheml with pairing "
    "mystic; none",
    "interference.reloadSeconds": "time between two looks whether these files, or the extender's "
    "table, changed; a kubelet takes as long to bring a ConfigMap's change. 0: they are read "
    "at the start alone",
    "interference.progressMetric": "the counter of work done that applications export; a pod whose "
    "bound is broken by it has a best-effort pod beside it evicted. Empty: nobody is, and nothing "
    "is asked",
    "interference.latencyMetric": "a gauge of applications' p99, in seconds, for pods with "
    f"{SLO_MS}; none, for there is no usual name",
    "interference.observed": "of a ConfigMap in lease.namespace: how slow pods were seen beside "
    "each other, and who is kept apart; empty keeps it in memory alone",
    "seed": "for policies that draw; the same seed decides the same",
}
