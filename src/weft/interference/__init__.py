"""Slowdown of pods that share a GPU: learnt from measurements, with a bound.

    records ─▶ features ─▶ committee (kernel models) ─┐
                       └─▶ trees (LightGBM) ──────────┴─▶ calibration ─▶ ladder ─▶ table

In: what was measured (`records`, `sources`), the rungs of the ladder (`history`, `committee`,
`trees`, `additive`), how far a bound must lie (`calibration`), predictors as files
(`model_file`), how good they are (`left_out`, `evaluate`), and the table that policies get (`table`).
Out: measuring (`lab/profiling/`), files' paths and commands (`cli/`), what follows
(`core/policies/`).
"""
