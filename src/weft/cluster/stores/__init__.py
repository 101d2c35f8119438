"""Stores in ConfigMaps what the next process needs: observed slowdowns, OOM history, learnt peaks.

In: reading, merging and writing these ConfigMaps. Out: their use in decisions (`core/engine/`)."""
