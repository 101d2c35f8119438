"""Stores in ConfigMaps what the next process needs: observed slowdowns, OOM history, learnt peaks.

Contents: reading, merging and writing these ConfigMaps. Not here: their use in decisions
(`core/engine/`)."""
