"""Which tasks are for development and which are the test split, chosen before any of them was run.

The first thirteen tasks were used while VSGD was developed, and so were some of the new ones' kinds;
none of those is in the test split. It is run once, at the end, and shown as ranks and counts only.
"""

from typing import Literal

__all__ = ["DEVELOPMENT", "FIRST", "TEST", "Split", "split_of"]

Split = Literal["development", "test"]

# The tasks that the table began with; the tuned are run on these alone.
FIRST = (
    "lenet",
    "mlp-1",
    "mlp-64",
    "mlp-1024",
    "softmax-1",
    "softmax-64",
    "cifar-mlp",
    "resnet",
    "autoencoder",
    "transformer",
    "lstm",
    "regression",
    "quadratic",
)

DEVELOPMENT = (
    *FIRST,
    # Stock models of transformers, from their configurations, with their default dropout.
    "bert",  # a classifier
    "gpt2",
    "llama",
    "vit",
    "t5",
    # Others that are ordinary or nasty.
    "tied-transformer",  # embeddings of variance 1 are the head, too: a saturated softmax at first
    "pinn",  # Poisson's equation
    "friedman",  # tabular regression
    "vae",
    "contrastive",  # self-supervised
    "sine-20k",  # a tiny model for 20,000 steps
    # The task changes during the run; judged by the mean loss over it.
    "relabelled-digits",
    "rotating-regression",
)

TEST = (
    "opt",  # a stock model of transformers
    "lora",  # low-rank layers on a model that the task trains first
    "unet",  # segmentation
    "policy-gradient",
    "recommender",  # sparse embeddings
    "raw-columns",  # tabular classification, inputs not scaled
    "masked-autoencoder",  # self-supervised
    "flow",  # generative
    # The task changes during the run; judged by the mean loss over it.
    "permuted-mnist",
    "switching-text",
)


def split_of(task: str) -> Split:
    """Return the split of a task by its name; what is in neither list is for development.

    >>> split_of("flow")
    'test'
    """
    return "test" if task in TEST else "development"
