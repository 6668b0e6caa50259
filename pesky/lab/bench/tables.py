"""What was measured, as tables that fit a terminal of 80 columns."""

from collections.abc import Iterator, Mapping
from typing import Any

from pesky.lab.tables.table import NOTHING, Table

__all__ = ["online_tables", "torch_tables"]

Row = Mapping[str, Any]

_NETWORK_ROWS = {
    "parameters": "parameters",
    "vsgd_l_microseconds": "vSGD-l, µs",
    "sgd_microseconds": "SGD, µs",
    "torch_sgd_microseconds": "torch SGD, µs",
    "torch_sgd_over_vsgd_l": "torch SGD / vSGD-l",
    "vsgd_l_over_sgd": "vSGD-l / SGD",
    "share_of_copy_bandwidth": "copy / vSGD-l",
    "two_threads_over_one": "two threads / one",
    "vsgd_l_bytes_per_parameter": "bytes a parameter",
}
_GROWTH = {"parameters": "parameters", "nanoseconds_per_parameter": "ns/parameter"}
_UPDATE = {
    "parameters": "parameters",
    "threads": "threads",
    "vsgd_milliseconds": "VSGD,\nms",
    "adam_milliseconds": "Adam,\nms",
    "vsgd_over_adam": "VSGD\n/ Adam",
    "vsgd_without_new_curvature_over_adam": "no new\ncurvature\n/ Adam",
    "eager_over_vsgd": "eager\n/ VSGD",
}
_TENSORS = {
    "tensors": "tensors",
    "threads": "threads",
    "vsgd_microseconds_per_tensor": "VSGD, µs/tensor",
    "adam_microseconds_per_tensor": "Adam, µs/tensor",
}
_MODELS = {
    "model": "model",
    "plain_milliseconds": "passes,\nms",
    "with_bbprop_over_plain": "bbprop\n/ passes",
    "paper_step_over_adam_step": "paper\n/ Adam",
    "paper_step_over_adam_step_curvature_every_10": "paper,\nevery\n10th",
    "robust_step_over_adam_step": "robust\n/ Adam",
    "first_robust_steps_over_adam_step": "first\n330",
}
_MEMORY = {
    "optimizer": "optimizer",
    "parameters": "parameters",
    "state_bytes_per_parameter": "state, bytes\na parameter",
    "peak_bytes_per_parameter": "with the peak\nof a step",
    "first_steps_milliseconds": "first steps,\nms",
}
_BACKPACK = {
    "model": "model",
    "threads": "threads",
    "with_bbprop_over_plain": "bbprop",
    "backpack_DiagGGNMC_over_plain": "DiagGGNMC",
    "backpack_DiagGGNExact_over_plain": "DiagGGNExact",
    "backpack_DiagHessian_over_plain": "DiagHessian",
}


def online_tables(result: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of `bench_online`: a column for each network, then growth."""
    networks = result["networks"]
    lines = [
        [heading, *(_shown(row.get(name)) for row in networks.values())]
        for name, heading in _NETWORK_ROWS.items()
    ]
    layers = (f"{name} {'-'.join(map(str, row['sizes']))}" for name, row in networks.items())
    yield Table(("", *networks), lines, "One step, batch size 1", note=f"Layers: {', '.join(layers)}.")
    title = "Cost of a vSGD-l step as the network grows ([n, 10])"
    yield _in_rows(title, result["growth"], _GROWTH)


def torch_tables(result: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the tables of `bench_update`, `bench_models` and `bench_memory` that have any row."""
    updates, models = result["update"], result["models"]
    tables = [
        ("The update alone", updates, _UPDATE),
        ("The update of many small tensors", updates, _TENSORS),
    ]
    for count in dict.fromkeys(row["threads"] for row in models if "threads" in row):
        title = f"Models, batch 64, {count} thread{'s' * (count > 1)}: a step beside fused Adam's"
        tables.append((title, [row for row in models if row["threads"] == count], _MODELS))
    tables.append(("Curvature: with it over passes alone", models, _BACKPACK))
    tables.append(("Memory above parameters and gradients", result["memory"], _MEMORY))
    for title, rows, columns in tables:
        measured = list(columns)[-1]
        having = [row for row in rows if measured in row]
        if having:
            yield _in_rows(title, having, columns)


def _in_rows(title: str, rows: list[Row], columns: Mapping[str, str]) -> Table:
    lines = [[_shown(row.get(name)) for name in columns] for row in rows]
    return Table(tuple(columns.values()), lines, title)


def _shown(value: float | str | None) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return NOTHING
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"
