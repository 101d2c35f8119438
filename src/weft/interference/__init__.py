"""Predicts how much pods that share a GPU slow each other down, with an upper bound.

    records ─▶ features ─▶ committee (kernel models) ─┐
                       └─▶ trees (LightGBM) ──────────┴─▶ calibration ─▶ ladder ─▶ table

Contents: measurements (`records`, `public_datasets`), the methods of prediction (`history`,
`committee`, `trees`, `additive`; the best that applies is chosen in `ladder`), the calibration of
bounds (`calibration`), predictors as files (`model_file`), their evaluation (`left_out`,
`evaluate`), and the `table` that policies read. Not here: measuring slowdowns (`lab/profiling/`),
commands and paths of files (`cli/`), and the policies that use predictions (`core/policies/`).
"""
