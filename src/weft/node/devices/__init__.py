"""A machine's GPUs and what they do: one Protocol, implemented by NVML and by a fake.

Contents: reading devices, their health, their use and the processes on them; running MPS. Not here:
what the agent and profiling do with that.
"""
