"""The paper's Figure 1: the loss is the mean of quadratics whose minima scatter."""

import numpy as np

from pesky.errors import check_count, check_number
from pesky.lab.figures.picture import (
    BLUE,
    ORANGE,
    PLAIN_BOX,
    Picture,
    legend_above,
    new_figure,
    tidy,
)

__all__ = ["make"]

MOST_SAMPLES = 1000  # more lines are one blot, and take minutes


def make(*, samples: int = 12, noise: float = 1.0, curvature: float = 1.0, seed: int = 3) -> Picture:
    """Draw `samples` per-sample losses, their scattered minima and the expected loss."""
    samples = check_count("samples", samples, least=2, most=MOST_SAMPLES)
    noise = check_number("noise", noise, above=0)
    curvature = check_number("curvature", curvature, above=0)
    seed = check_count("seed", seed, least=0)
    centres = np.random.default_rng(seed).normal(0.0, noise, size=samples)
    theta = np.linspace(-4 * noise, 4 * noise, 400)
    expected = curvature * (theta**2 + noise**2) / 2
    figure, axes = new_figure(7, 4.6)
    for number, centre in enumerate(centres):
        label = "loss of one sample" if number == 0 else None
        loss = curvature * (theta - centre) ** 2 / 2
        axes.plot(theta, loss, color=BLUE, linestyle=":", linewidth=1.3, label=label)
    axes.plot(theta, expected, color=ORANGE, linewidth=4, label="expected loss")
    axes.plot(centres, np.zeros(samples), "|", color=BLUE, markersize=12, clip_on=False)
    axes.axvline(0, color="0.5", linewidth=1)
    axes.annotate("θ*", (0, expected.max() * 0.93), xytext=(6, 0), textcoords="offset points")
    axes.annotate(
        "½hσ²: left even at θ*",
        (0, curvature * noise**2 / 2),
        xytext=(1.35 * noise, expected.max() * 0.62),
        ha="center",
        bbox=PLAIN_BOX,
        arrowprops={"arrowstyle": "->", "color": "0.3"},
    )
    axes.set_ylim(0, expected.max())
    axes.set_xlim(theta[0], theta[-1])
    tidy(axes, x="parameter θ", y="loss")
    legend_above(figure, axes, columns=2)
    numbers = {
        "curvature": curvature,
        "noise": noise,
        "samples": samples,
        "seed": seed,
        "mean_of_sample_optima": float(centres.mean()),
        "deviation_of_sample_optima": float(centres.std()),
        "noise_floor": curvature * noise**2 / 2,
    }
    return Picture("idealised", figure, numbers)
