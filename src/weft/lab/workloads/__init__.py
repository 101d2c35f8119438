"""Small PyTorch programs with known bottlenecks, to measure how GPU applications slow each other.

    catalog ─▶ models (cnns, transformers, …) ─▶ steps ─▶ running ─▶ progress, one JSON line each
                                                       ─▶ queries ─▶ latencies, in MLPerf's format

Contents: some twenty workloads with random weights and generated data, and the loop that runs one
and reports its progress. `python -m weft.lab.workloads list | run NAME | answer NAME`. Not here:
choosing what runs together, and evaluating it (`lab/profiling/`). These files import PyTorch and
the standard library but nothing else of Weft, so that any Python with PyTorch can run them. PyTorch
is imported only when a workload runs; Weft does not depend on it. `perceptron-infer` runs without
PyTorch.
"""
