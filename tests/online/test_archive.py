"""Files of networks and learners: damaged, strange, old or mistaken ones are refused by name."""

import json

import numpy as np
import pytest

from pesky.errors import InputError
from pesky.online import VSGD, Learner, Network, fit
from tests.online.cases import GOOD_X, GOOD_Y


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
