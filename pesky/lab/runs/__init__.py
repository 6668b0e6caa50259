"""What every comparison is made of: one run, runs side by side, and the store that keeps them.

- `training`: one network of the online engine, from its seed's start to its errors.
- `seeds`: a few such runs side by side, for commands and figures that keep no store.
- `store`: runs as rows of a SQLite file of some `layout`; `completing` does those that it lacks.
- `settings`: what is set of a method, as rows have it; `means`: a number over several runs.
- `workers`: who does runs; `threads`: any work side by side.
"""
