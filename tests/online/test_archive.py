"""Files of networks and learners: damaged, strange, old or mistaken ones are refused by name."""

import json

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.online import VSGD, Learner, Network, fit
from tests.online.cases import GOOD_X, GOOD_Y, assert_same_run, network_like, some_data


def saved(path, kind):
    """A good file of either kind, and the function that reads it."""
    if kind == "network":
        Network([3, 2]).save(path)
        return Network.load
    Learner(Network([3, 2]), VSGD()).learn(GOOD_X * 4, GOOD_Y * 4).save(path)
    return Learner.load


def changed(path, **arrays):
    with np.load(path) as archive:
        content = dict(archive)
    for name, value in arrays.items():
        content.pop(name.replace("__", "."))
        if value is not None:
            content[name.replace("__", ".")] = value
    write(path, np.savez, **content)


def write(path, save, *arrays, **named):
    with path.open("wb") as stream:
        save(stream, *arrays, **named)


DAMAGE = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-200]),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "text": lambda path: path.write_text("no archive"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a single array": lambda path: write(path, np.save, np.zeros(3)),
    "a pickle": lambda path: write(path, np.save, np.array([None])),
    "another archive": lambda path: write(path, np.savez, a=np.zeros(3)),
    "no parameters": lambda path: changed(path, theta=None),
    "parameters of another shape": lambda path: changed(path, theta=np.zeros(3, np.float32)),
    "text for parameters": lambda path: changed(path, theta=np.array(["a"] * 8)),
    "NaN for parameters": lambda path: changed(path, theta=np.full(8, np.nan, np.float32)),
}


@pytest.mark.parametrize("kind", ["network", "learner"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused_by_name(damage, kind, tmp_path):
    path = tmp_path / "file.npz"
    load = saved(path, kind)
    damage(path)
    with pytest.raises(InputError, match=r"file\.npz|theta"):
        load(path)


@pytest.mark.parametrize("kind", ["network", "learner"])
def test_a_flipped_byte_is_noticed_or_harmless(kind, tmp_path):
    path = tmp_path / "file.npz"
    load = saved(path, kind)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        content = bytearray(whole)
        content[place] ^= 0xFF
        path.write_bytes(content)
        try:
            loaded = load(path)
        except InputError as error:
            assert "file.npz" in str(error) or "theta" in str(error)  # noqa: PT017
        else:
            network = loaded if kind == "network" else loaded.network
            assert np.all(np.isfinite(network.theta)), place


@pytest.mark.parametrize("content", ["", "no json", "3", "{}", '{"sizes": [3, 2], "colour": 1}', "[]"])
@pytest.mark.parametrize("kind", ["network", "learner"])
def test_strange_settings_in_a_file_are_refused(content, kind, tmp_path):
    path = tmp_path / "file.npz"
    load = saved(path, kind)
    changed(path, **{kind: np.array(content)})
    with pytest.raises(InputError):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"state__mean_square": None},
        {"state__mean_square": np.zeros(3, np.float32)},
        {"trace__step": None},
        {"trace__rate": np.zeros(3)},
    ],
    ids=str,
)
def test_a_checkpoint_that_lacks_something_is_refused(change, tmp_path):
    path = tmp_path / "file.npz"
    saved(path, "learner")
    changed(path, **change)
    with pytest.raises(InputError, match=r"file\.npz"):
        Learner.load(path)


@pytest.mark.parametrize(
    "change",
    [{"format": 999}, {"method": {"class": "Sorcery"}}, {"method": {"class": "Method"}}],
    ids=str,
)
def test_a_checkpoint_of_another_version_is_refused(change, tmp_path):
    path = tmp_path / "file.npz"
    saved(path, "learner")
    with np.load(path) as archive:
        counters = json.loads(str(archive["learner"]))
    changed(path, learner=np.array(json.dumps(counters | change)))
    with pytest.raises(InputError, match=r"file\.npz"):
        Learner.load(path)


# What a robust learner of format 1 had not; it had a curvature for each parameter.
LEVELS = ("level_square", "typical_square", "level", "inverse", "weight", "counts")


def make_old(path, **settings):
    """Rewrite a file as format 1 had it."""
    with np.load(path) as archive:
        content = dict(archive)
    counters = json.loads(str(content["learner"]))
    counters["format"] = 1
    counters["method"] |= settings
    content["learner"] = np.array(json.dumps(counters))
    if counters["method"]["dialect"] == "robust":
        sizes = content["state.sizes"]
        for name in LEVELS:
            content.pop(f"state.{name}")
        content["state.mean_curvature"] = np.ones_like(content["theta"])
        content["state.memory"] = np.repeat(content["state.memory"], sizes).astype(np.float32)
        content["state.trusted"] = np.ones(sizes.size, np.float32)
    write(path, np.savez, **content)


@pytest.mark.parametrize("samples", [4, 60])
@pytest.mark.parametrize(("old_every", "every"), [(1, None), (3, 3)])
def test_a_robust_learner_of_format_1_goes_on_with_levels_yet_to_be_measured(
    samples, old_every, every, tmp_path
):
    path = tmp_path / "old.npz"
    network = Network([3, 4, 2], l2=1e-4)
    X, y = some_data(network, 100, seed=1)
    before = Learner(network, VSGD(dialect="robust")).learn(X[:samples], y[:samples])
    before.save(path)
    make_old(path, curvature_every=old_every)
    learner = Learner.load(path)
    assert learner.method == VSGD(dialect="robust", curvature_every=every)
    assert (learner.steps, learner.started) == (before.steps, before.started)
    for name in ("mean_gradient", "mean_square"):
        np.testing.assert_array_equal(getattr(learner.state, name), getattr(before.state, name))
    np.testing.assert_allclose(learner.state.memory, before.state.memory, rtol=1e-6)
    np.testing.assert_array_equal(learner.state.level_square, 0)
    np.testing.assert_allclose(learner.state.typical_square, before.state.typical_square, rtol=1e-5)
    shown = learner.network.theta.copy()
    np.testing.assert_array_equal(shown, before.network.theta)
    learner.learn(X[60:61], y[60:61])
    if learner.started:
        assert np.all(learner.state.level_square > 0)
        np.testing.assert_array_equal(learner.state.average, shown)
    learner.learn(X, y)
    assert learner.diverged_at is None
    assert np.all(learner.network.theta != shown)


def test_a_run_of_format_1_is_resumed(tmp_path):
    path, method = tmp_path / "run.npz", VSGD(dialect="robust")
    network = Network([3, 4, 2])
    X, y = some_data(network, 50, seed=2)
    fit(network, method, X, y, epochs=1, checkpoint=path)
    make_old(path, curvature_every=1)
    result = fit(network, method, X, y, epochs=2, checkpoint=path)
    assert (result.status, result.steps, len(result.loss)) == ("finished", 100, 2)


def test_a_robust_learner_of_format_2_goes_on_without_its_previous_iterate(tmp_path):
    path, method = tmp_path / "old.npz", VSGD(dialect="robust")
    network = Network([3, 4, 2], l2=1e-4)
    X, y = some_data(network, 60, seed=4)
    whole = Learner(network_like(network), method).learn(X, y)
    Learner(network_like(network), method).learn(X[:30], y[:30]).save(path)
    with np.load(path) as archive:
        content = dict(archive)
    counters = json.loads(str(content["learner"])) | {"format": 2}
    nobody_reads = np.full(network.parameters, np.nan, np.float32)
    content |= {"learner": np.array(json.dumps(counters)), "state.previous": nobody_reads}
    write(path, np.savez, **content)
    assert_same_run(Learner.load(path).learn(X[30:], y[30:]), whole)


@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_other_learners_of_format_1_go_on_bit_for_bit(granularity, tmp_path):
    path, method = tmp_path / "old.npz", VSGD(granularity, slow_start=100)
    network = Network([3, 4, 2])
    X, y = some_data(network, 60, seed=3)
    whole = Learner(network_like(network), method).learn(X, y)
    Learner(network_like(network), method).learn(X[:30], y[:30]).save(path)
    make_old(path)
    assert_same_run(Learner.load(path).learn(X[30:], y[30:]), whole)


@pytest.mark.parametrize(
    "change",
    [
        {"state__sizes": None},
        {"state__mean_square": None},
        {"state__memory": None},
        {"state__sizes": np.array([6, 3])},
        {"state__sizes": np.array([8, 0])},
        {"state__sizes": np.array(8)},
        {"state__mean_square": np.zeros((2, 4), np.float32)},
    ],
    ids=str,
)
def test_a_damaged_robust_learner_of_format_1_is_refused(change, tmp_path):
    path = tmp_path / "old.npz"
    Learner(Network([3, 2]), VSGD(dialect="robust")).learn(GOOD_X * 4, GOOD_Y * 4).save(path)
    make_old(path)
    changed(path, **change)
    with pytest.raises(InputError, match=r"old\.npz"):
        Learner.load(path)


def test_files_of_one_kind_are_not_taken_for_the_other(tmp_path):
    saved(tmp_path / "network.npz", "network")
    saved(tmp_path / "learner.npz", "learner")
    with pytest.raises(InputError, match=r"learner\.npz"):
        Network.load(tmp_path / "learner.npz")
    with pytest.raises(InputError, match=r"network\.npz"):
        Learner.load(tmp_path / "network.npz")


def test_a_stream_is_no_checkpoint_of_fit(tmp_path):
    saved(tmp_path / "stream.npz", "learner")
    with pytest.raises(InputError, match=r"stream\.npz"):
        fit(Network([3, 2]), VSGD(), GOOD_X, GOOD_Y, checkpoint=tmp_path / "stream.npz")
