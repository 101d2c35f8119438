"""Predicts how much pods that share a GPU slow each other down, with an upper bound.

    records ─▶ features ─▶ committee (kernel models) ─┐
                       └─▶ trees (LightGBM) ──────────┴─▶ calibration ─▶ ladder ─▶ table

In: measurements (`records`, `public_datasets`), the rungs of the ladder (`history`, `committee`,
`trees`, `additive`), the calibration of bounds (`calibration`), predictors as files
(`model_file`), their evaluation (`left_out`, `evaluate`), and the policies' `table`.
Out: measuring (`lab/profiling/`), files' paths and commands (`cli/`), and the policies that use
predictions (`core/policies/`).
"""
