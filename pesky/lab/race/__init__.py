"""vSGD against its rivals, each tuned over the paper's grids, one sample at a time.

- `contest`: one benchmark with its data, and how one of its runs is done; `cluster` does it elsewhere.
- `runner`: all runs of a race; `grids` and `tuning`: the settings tried, and which of them wins.
- `rows`: what is stored of a run; `recorded`: what a store holds; `standings`: what that says.
"""
