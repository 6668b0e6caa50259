"""Experiments: what vSGD is compared with, on what, and how it is shown. Needs ``pesky[lab]``.

- `runs`: one run, runs side by side, and the store that keeps them.
- `race`, `torch_table`: the two comparisons, which choose runs and say what they mean.
- `tables`, `figures`, `pages`: a table as a value, pictures, and the pages made of both.
- `bench`: measurements of speed.
- `benchmarks`, `datasets`, `fetching`, `own_data`, `torch_models`: what is trained, and on what.
- `paper`, `comparison`: the paper's own numbers, and methods on a noisy quadratic.
"""
