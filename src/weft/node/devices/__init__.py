"""A machine's GPUs and what they do: one Protocol, with NVML and a fake behind it.

In: devices, their health, their use and the processes on them; MPS.
Out: everything else of Weft but the model. Profiling measures through it, the agent reports by it.
"""
