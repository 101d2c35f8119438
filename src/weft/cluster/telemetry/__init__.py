"""Reads the GPUs' metrics on a schedule and hands the engine a new snapshot each time.

In: the loop, discovery of servers and exporters, observed slowdowns, OOM ends, reloaded
predictions. Out: what a metric means (`telemetry/`).
"""
