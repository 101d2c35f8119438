"""Keeps in ConfigMaps what the next process must know: observed slowdowns, OOM history, peaks.

In: reading, merging and writing them. Out: what they mean to decisions (`core/engine/`).
"""
