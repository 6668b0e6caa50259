"""What tests of the page and of its scores share: rows put into a store, parts of a page."""

from pesky.lab.torch_table.contestants import CONTESTANTS
from tests.lab.toys import toy_key


def put(store, name, *rows, setting=None, **changed):
    contestant = CONTESTANTS[name]
    for seed, row in enumerate(rows):
        key = toy_key(contestant.method, setting or contestant.settings[0], seed=seed, **changed)
        store.finish(key, row)


def section(page, heading):
    return page.split(f"{heading}\n")[1].split("\n#")[0]
