"""Profiles of applications: measured on a GPU, or derived from a metrics server's history.

    measure   plan ─▶ campaign(pool ─▶ bench) ─▶ a log of runs ─▶ compiled ─┐
    collect   stays (who ran where, when) ─▶ alone ─▶ history ──────────────┴─▶ profiles ─▶ stores

In: planning and running measurements on a `Bench` (processes, NVML, MPS), what runs come to,
profiles out of Prometheus' history, and where they are kept (a file, a ConfigMap).
Out: what follows for who shares with whom (`interference/`, `core/policies/`), and what the
workloads do (`lab/workloads/`).
"""
