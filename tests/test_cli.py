"""Until `lab/test_torch_table_ablation.py` imports from `tests.commands`."""

from tests.commands import assert_one_clear_line

__all__ = ["assert_one_clear_line"]
