"""Fakes that the tests and benchmarks of Weft play the world with; each says that it is one.

In: the API server, hollow kubelets, NRI's runtime, the kubelet's device manager, NVML, MPS,
exporters, a GPU to measure on, and slow, obvious references of the ledger and of "fits". Out: the
tests, and builders of pods and nodes (`weft.testing`, which authors of policies have as well).
"""
