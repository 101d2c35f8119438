"""Reads what GPUs do: metric sources, names and units, joining to GPUs and pods, the feed.

    sources/ ─▶ meaning/ ─▶ feed/ ─▶ SignalsSnapshot
                              ▲ forecast/

Here are `sources/` (metrics servers and exporters: requests and answers), `meaning/` (canonical
metrics, exporters' names and labels, joining series to GPUs), `feed/` (windows, false readings,
columns, memory needs, for live and simulated clusters alike) and `forecast/`. Decisions are made
with the numbers in `core/`; `cluster/telemetry/telemetry_loop` determines when to refresh them."""
