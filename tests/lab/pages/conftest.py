import pytest

from pesky.lab.race.rows import Store
from tests.lab.race.made_up import put_m0


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "race.sqlite") as opened:
        put_m0(opened)
        yield opened


@pytest.fixture
def torch_store(tmp_path):
    """All untuned contestants on one task; the later one comes, the worse it is."""
    pytest.importorskip("torch")
    from pesky.lab.torch_table import rows as torch_rows
    from pesky.lab.torch_table.contestants import CONTESTANTS
    from pesky.lab.torch_table.table import TorchTable
    from pesky.lab.torch_table.tasks import TASKS
    from tests.lab.toys import some_row

    path = tmp_path / "torch.sqlite"
    task = TASKS["quadratic"]
    untuned = [one for one in CONTESTANTS.values() if not one.is_tuned]
    table = TorchTable((task,), tuple(untuned))
    with torch_rows.Store(path) as opened:
        for place, one in enumerate(untuned):
            for seed in range(3):
                row = some_row(0.25 + place, 1.5 + place + seed)
                opened.finish(table.key(task, one, one.settings[0], seed), row)
    return path
