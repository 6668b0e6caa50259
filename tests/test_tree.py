from tests.tree import PAGE, with_tree


def test_the_tree_in_contributing_is_that_of_the_package():
    page = PAGE.read_text(encoding="utf-8")
    assert with_tree(page) == page, "python -m tests.tree writes it anew"
