"""VSGD against today's optimizers in PyTorch.

- `tasks`, each a `task` that begins an `instance` at a seed: of `images`, `text` and `synthetic` data,
  `huggingface` models, `lora`, `poisson`, `segmenting`, `policy`, `tabular`, `generative`,
  `selfsupervised`, and such that are `changing`. `splits` says which ten are the test.
- `contestants`, and the `loops` that their authors write.
- `running`: one run; `workers`: who does it; `rows`: what is stored of it; `table`: all of them;
  `scores`: what they say over many tasks.
- `page`, `scores_page`, `ablation_page` and `drawing` show them; `ablation` leaves parts of VSGD out.
"""
