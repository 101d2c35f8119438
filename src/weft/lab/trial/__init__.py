"""Runs experiments on a real cluster, one scheduler's turn after another.

    turn: namespace ─▶ probe ─▶ Jobs at their times ─▶ wait ─▶ logs, events ─▶ clean-up
                                                                 └─▶ job_rows, ranges ─▶ measures

In: making an experiment's Jobs, watching them, reading Kubernetes' own timestamps and a metrics
server's samples, removing all of it again.
Out: which Jobs these are and what came of them compared (`lab/experiment/`); where pods go, which
is the schedulers' affair. These files know the API, metrics and values, and no engine.
"""
