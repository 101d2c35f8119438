"""Small PyTorch programs with known bottlenecks, to measure how GPU applications slow each other.

    catalog ─▶ models (cnns, transformers, …) ─▶ steps ─▶ running ─▶ progress, one JSON line each
                                                       ─▶ queries ─▶ latencies, as MLPerf says them

In: some twenty workloads with random weights and data made in place, and the loop that runs one
and says how far it is. `python -m weft.lab.workloads list | run NAME | answer NAME`.
Out: who runs beside whom, and what that means (`lab/profiling/`). These files know PyTorch, the
standard library and nothing else of Weft, so that any Python with PyTorch can run them; PyTorch is
imported when one is run, and is no dependency of Weft. One workload needs no PyTorch.
"""
