"""VSGD against today's optimizers on small PyTorch tasks, untuned and tuned."""
