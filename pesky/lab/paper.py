"""What the paper reports: Tables 1, 2 and 3 of Schaul, Zhang and LeCun (2013), as data."""

from typing import Literal

__all__ = ["BEST_SETTINGS", "EPOCHS", "TEST", "TRAIN", "published_error"]

EPOCHS = 6  # after which the errors of its tables are measured

_COLUMNS = ("vsgd-l", "vsgd-b", "vsgd-g", "sgd", "adagrad", "smd", "amari", "almeida")


def _table(rows: dict[str, tuple[float, ...]]) -> dict[str, dict[str, float]]:
    return {name: dict(zip(_COLUMNS, values, strict=False)) for name, values in rows.items()}


# Table 2: error on the training set, percent (CR: reconstruction error).
TRAIN = _table(
    {
        "M0": (6.72, 7.63, 8.20, 7.05, 6.97, 7.02, 7.33, 11.80),
        "M1": (0.18, 0.78, 3.50, 0.30, 0.58, 0.40, 2.91, 8.49),
        "M2": (0.05, 0.33, 2.91, 0.46, 0.41, 0.55, 1.68, 7.16),
        "C0": (45.61, 52.45, 56.16, 54.78, 54.36),
        "C1": (33.16, 45.14, 54.91, 47.12, 45.20),
        "CR": (10.64, 10.13, 15.37, 9.77, 9.80),
    }
)

# Table 3: the same on the test set.
TEST = _table(
    {
        "M0": (7.50, 7.89, 8.20, 7.60, 7.52, 7.57, 7.69, 11.13),
        "M1": (2.42, 2.44, 4.14, 2.34, 2.70, 2.37, 3.95, 8.39),
        "M2": (2.16, 2.05, 3.65, 2.15, 2.34, 2.18, 2.97, 7.32),
        "C0": (66.05, 61.70, 61.10, 61.06, 61.25),
        "C1": (57.72, 59.55, 60.62, 58.85, 58.67),
        "CR": (11.05, 10.57, 15.71, 10.29, 10.33),
    }
)

# Table 1: the best settings found; gamma is in units of 1 / (training samples).
BEST_SETTINGS: dict[str, dict[str, dict[str, str]]] = {
    "M0": {
        "sgd": {"eta0": "3e-2", "gamma": "1"},
        "adagrad": {"eta0": "1e-1"},
        "amari": {"eta0": "1e-5", "tau": "1e4"},
        "smd": {"eta0": "1e-1", "mu": "1e-3", "tau": "1e3"},
        "almeida": {"eta0": "1e-3", "tau": "1e3"},
    },
    "M1": {
        "sgd": {"eta0": "3e-2", "gamma": "1/2"},
        "adagrad": {"eta0": "1e-1"},
        "amari": {"eta0": "1e-6", "tau": "5e3"},
        "smd": {"eta0": "3e-2", "mu": "1e-4", "tau": "1e4"},
        "almeida": {"eta0": "1e-3", "tau": "1e4"},
    },
    "M2": {
        "sgd": {"eta0": "1e-2", "gamma": "1/2"},
        "adagrad": {"eta0": "3e-2"},
        "amari": {"eta0": "3e-7", "tau": "5e3"},
        "smd": {"eta0": "3e-2", "mu": "1e-3", "tau": "1e2"},
        "almeida": {"eta0": "1e-3", "tau": "1e4"},
    },
    "C0": {"sgd": {"eta0": "3e-3", "gamma": "1"}, "adagrad": {"eta0": "1e-2"}},
    "C1": {"sgd": {"eta0": "1e-2", "gamma": "1"}, "adagrad": {"eta0": "3e-3"}},
    "CR": {"sgd": {"eta0": "3e-3", "gamma": "1"}, "adagrad": {"eta0": "1e-2"}},
}


def published_error(
    part: Literal["train", "test"], benchmark: str, method: str, epochs: int
) -> float | None:
    """Return the paper's number; None where it has none, and after other epochs than its own."""
    if epochs != EPOCHS:
        return None
    return (TRAIN if part == "train" else TEST).get(benchmark, {}).get(method)
