"""Settings of methods: bad ones are refused, NumPy's numbers are numbers."""

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.online import SGD, SMD, VSGD, AdaGrad, Almeida, Amari, Network, fit
from tests.online.cases import GOOD_X, GOOD_Y

BAD_METHODS = [
    (VSGD, {"granularity": "layer"}, "granularity.*layer"),
    (VSGD, {"granularity": None}, "granularity.*None"),
    (VSGD, {"dialect": "french"}, "dialect.*french"),
    (VSGD, {"slow_start": 0.5}, "slow_start.*0.5"),
    (VSGD, {"slow_start": np.nan}, "slow_start.*nan"),
    (VSGD, {"slow_start": 1e39}, "slow_start.*1e.39"),
    (VSGD, {"init_samples": 0}, "init_samples.*0"),
    (VSGD, {"init_samples": 2.5}, "init_samples.*2.5"),
    (VSGD, {"curvature_floor": 0}, "curvature_floor.*0"),
    (VSGD, {"curvature_floor": -1.0}, "curvature_floor.*-1"),
    (VSGD, {"curvature_floor": 1e39}, "curvature_floor.*1e.39"),
    (VSGD, {"curvature_every": 0}, "curvature_every.*0"),
    (VSGD, {"curvature_every": 1.5}, "curvature_every.*1.5"),
    (SGD, {"eta0": 0.1, "gamma": -1}, "gamma.*-1"),
    (SGD, {"eta0": 0.1, "gamma": np.inf}, "gamma.*inf"),
    (Amari, {"eta0": 0.1, "tau": 0.9}, "tau.*0.9"),
    (Amari, {"eta0": 0.1, "tau": np.inf}, "tau.*inf"),
    (Amari, {"eta0": 0.1, "tau": 10, "start": "zero"}, "start.*zero"),
    (Almeida, {"eta0": 0.1, "tau": 0.9}, "tau.*0.9"),
    (Almeida, {"eta0": 0.1, "tau": 10, "start": None}, "start.*None"),
    (Almeida, {"eta0": 0.1, "tau": 10, "reading": "aloud"}, "reading.*aloud"),
    (Almeida, {"eta0": 0.1, "tau": 10, "reading": ["product"]}, "reading.*product"),
    (SMD, {"eta0": 0.1, "mu": -0.1, "tau": 10}, "mu.*-0.1"),
    (SMD, {"eta0": 0.1, "mu": 0.1, "tau": 0}, "tau.*0"),
]


for method in (SGD, AdaGrad, Amari, Almeida, SMD):
    other = {AdaGrad: {}, SGD: {}, SMD: {"mu": 0.1, "tau": 10}}.get(method, {"tau": 10})
    for eta0 in (0, -0.1, np.nan, np.inf, "0.1", None, True, 1e39):
        BAD_METHODS.append((method, {"eta0": eta0, **other}, "eta0"))


@pytest.mark.parametrize(
    ("method", "settings", "named"), BAD_METHODS, ids=[f"{m.__name__} {s}" for m, s, _ in BAD_METHODS]
)
def test_bad_settings_of_methods_are_refused(method, settings, named):
    with pytest.raises(InputError, match=f"(?s){named}"):
        method(**settings)


@pytest.mark.parametrize(
    "method",
    [
        SGD(np.float32(0.1)),
        SGD(np.float64(0.1), gamma=np.int64(1)),
        VSGD(init_samples=np.int64(3), slow_start=np.float32(2)),
        VSGD(curvature_every=np.int32(2), curvature_floor=np.float32(0.1)),
        AdaGrad(1),
    ],
    ids=str,
)
def test_settings_may_be_numpy_numbers_and_survive_a_file(method, tmp_path):
    path = tmp_path / "run.npz"
    whole = fit(Network([3, 2]), method, GOOD_X, GOOD_Y, epochs=2)
    fit(Network([3, 2]), method, GOOD_X, GOOD_Y, epochs=1, checkpoint=path)
    rest = fit(Network([3, 2]), method, GOOD_X, GOOD_Y, epochs=2, checkpoint=path)
    np.testing.assert_array_equal(rest.learner.network.theta, whole.learner.network.theta)
