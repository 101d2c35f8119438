"""Where the numbers come from: whose metric means what, in which unit, about which GPU and pod.

    source ─▶ answers ─▶ join ─▶ window ─▶ refresh ─▶ SignalsSnapshot
    (prometheus, exporters)        names ┘    doubts ┘

In: `names` (canonical metrics, the exporters' names for them, labels in all their spellings), two
sources and what they answer, how questions get there and who asks (`transport`, `proxied`), which
Services are metrics servers (`servers`), joining series to GPUs, the window of the last minutes,
what is not believed, and the columns of a snapshot; `checking` says what is missing.
Out: forecasts, and anything decided with the numbers; when to look
(`cluster/telemetry/telemetry_loop`).
"""
