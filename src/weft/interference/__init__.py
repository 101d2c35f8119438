"""Predicts how much pods that share a GPU slow each other down, with an upper bound.

    records ─▶ features ─▶ committee (kernel models) ─┐
                       └─▶ trees (LightGBM) ──────────┴─▶ calibration ─▶ ladder ─▶ table

The package has measurements (`records`, `public_datasets`), the methods of prediction (`history`,
`committee`, `trees`, `additive`; the best that applies is chosen in `ladder`), the calibration of
bounds (`calibration`), predictors as files (`model_file`), their evaluation (`left_out`,
`evaluate`), and the `table` that policies read. Slowdowns are measured in `lab/profiling/`.
Commands and paths of files are in `cli/`, the policies that use predictions in `core/policies/`.
"""
