"""Rows of races that nobody ran, as a store holds them."""

from pesky.lab.race.contest import protocol_of
from pesky.lab.race.grids import settings_of
from pesky.lab.race.rows import Row, RunKey
from pesky.lab.runs.settings import settings_text
from pesky.online import NUMERICS_VERSION


def add(store, benchmark, method, settings, seed, train, test, status="finished"):
    key = RunKey(
        *(benchmark, "0", "full", "784-10", "cross-entropy", method, settings_text(settings)),
        *(6, seed, NUMERICS_VERSION, protocol_of(method)),
    )
    store.finish(key, Row(status, train, test, test, None, 1000, 1.5))


def put_m0(store):
    """M0 with vSGD-l, SGD and AdaGrad; SGD's best is its fifth setting, by far."""
    for seed in (0, 1, *range(100, 110)):
        add(store, "M0", "vsgd-l", {}, seed, 6.7 + seed % 3 / 100, 7.5 + seed % 3 / 100)
    for number, settings in enumerate(settings_of("sgd", "full", "M0")):
        for seed in (0, 1):
            error = 7.6 if number == 4 else 9.0 + number
            status = "diverged" if number > 60 else "finished"
            add(store, "M0", "sgd", settings, seed, error - 0.5, error, status)
    best = settings_of("sgd", "full", "M0")[4]
    for seed in range(100, 110):
        add(store, "M0", "sgd", best, seed, 9.3 + seed % 3 / 100, 9.8 + seed % 3 / 100)
