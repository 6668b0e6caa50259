"""A file is whole or not there, whatever happens while it is written."""

import numpy as np
import pytest

from pesky.files import atomic_path


def test_the_new_file_replaces_the_old_one_only_at_the_end(tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("old")
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(failure, tmp_path):
    path = tmp_path / "result.txt"
    path.write_text("old")

    def write():
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise failure

    with pytest.raises(failure):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_keeps_the_suffix_that_numpy_goes_by(tmp_path):
    with atomic_path(tmp_path / "arrays.npz") as temporary:
        np.savez(temporary, a=np.arange(3))
    with np.load(tmp_path / "arrays.npz") as arrays:
        np.testing.assert_array_equal(arrays["a"], [0, 1, 2])
