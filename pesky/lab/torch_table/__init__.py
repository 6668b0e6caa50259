"""VSGD against today's optimizers in PyTorch.

- `tasks`, of `images`, `text` and `synthetic` data, each an `instance` at a seed; `contestants`.
- `running`: one run; `workers`: who does it; `rows`: what is stored of it; `table`: all of them.
- `page`, `ablation_page` and `drawing` show them; `ablation` leaves parts of VSGD out.
"""
