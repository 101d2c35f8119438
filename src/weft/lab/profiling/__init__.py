"""Profiles of applications: measured on a GPU, or derived from a metrics server's history.

    measure   plan ─▶ campaign(pool ─▶ bench) ─▶ log of runs ─▶ dataset ─┐
    collect   pods' stays on GPUs ─▶ times alone ─▶ history ─────────────┴─▶ profiles ─▶ stores

Contents: planning and running measurements on a `Bench` (processes, NVML, MPS), turning runs into
datasets, profiles from Prometheus' history, and storing them (a file, a ConfigMap). Not here: using
profiles to choose neighbours (`interference/`, `core/policies/`), and the workloads themselves
(`lab/workloads/`)."""
