"""What the GPUs are doing and will do: time series, forecasts, and decisions read off them.

In: `telemetry/` (whose metric means what), `forecast/` (every series at once, in arrays), `knots`
(the Kube-Knots rules as pure functions), `correlation` (which loads rise together).
Out: when pods are placed (`engine/`), how nodes are scored (`policies/`), who holds what
(`ledger/`). Nothing here asks a clock or a network; samples and times are passed in.
"""
