"""Reads what GPUs do: metric sources, names and units, joining to GPUs and pods, the feed.

    sources/ ─▶ meaning/ ─▶ feed/ ─▶ SignalsSnapshot
                              ▲ forecast/

Contents: `sources/` (metrics servers and exporters: requests and answers), `meaning/` (canonical
metrics, exporters' names and labels, joining series to GPUs), `feed/` (windows, false readings,
columns, memory needs, for live and simulated clusters alike) and `forecast/`. Not here: decisions
made with the numbers (`core/`), and when to refresh them (`cluster/telemetry/telemetry_loop`)."""
