"""Runs experiments on a real cluster, one turn after another: one scheduler, one seed's Jobs.

    turn: namespace ─▶ probe ─▶ Jobs at their times ─▶ wait ─▶ logs, events ─▶ clean-up
                                                                 └─▶ job_rows, ranges ─▶ measures

Contents: creating an experiment's Jobs, watching them, reading Kubernetes' timestamps and a metrics
server's samples, and removing everything afterwards. Not here: planning Jobs and comparing results
(`lab/experiment/`); placing pods, which the schedulers under test do. These files use the API and
metrics, but no engine."""
