"""A machine's GPUs and what they do: one Protocol, implemented by NVML and by a fake.

In: devices, their health, their use and the processes on them; MPS. Out: everything else of Weft
except the model. Used for profiling and by the agent.
"""
