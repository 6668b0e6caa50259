"""Experiments: what vSGD is compared with, on what, and how the results are shown.

- `runs`: one run, runs side by side, and the store that keeps them.
- `race`, `torch_table`: the two comparisons, which choose runs and say what they mean.
- `figures`, `pages`, `bench`: pictures, pages of tables, and measurements of speed.
- `benchmarks`, `datasets`, `fetching`, `own_data`, `torch_models`: what is trained, and on what.
- `paper`, `comparison`: the paper's own numbers, and methods on a noisy quadratic.
"""
