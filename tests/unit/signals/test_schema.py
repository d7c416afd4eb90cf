from __future__ import annotations

import math
import re
import struct

from every_case import every_case

from holdfast.signals.schema import MISSING, MISSING_BITS, MISSING_INT, TABLES, Column, Kind, Table
from holdfast.signals.segment import _describe

CORE = (
    *("step", "epoch", "time", "loss", "lr", "grad_norm", "weight_norm", "update_ratio", "step_seconds", "data_seconds"),
    *("samples", "skipped", "scale", "gpu_allocated", "gpu_reserved", "host_rss"),
)


def columns() -> list[tuple[Table, Column]]:
    return [(table, column) for table in TABLES.values() for column in table.columns]


def test_missing_is_a_nan_that_arithmetic_does_not_make() -> None:
    made = (math.nan, math.inf - math.inf, float("nan"), -math.nan)
    assert math.isnan(MISSING)
    assert struct.pack("<d", MISSING) == struct.pack("<Q", MISSING_BITS)
    assert all(struct.pack("<d", value) != struct.pack("<d", MISSING) for value in made)


@every_case("kind", list(Kind))
def test_every_kind_of_column_can_say_that_a_value_is_missing(kind: Kind) -> None:
    assert kind.missing == MISSING_INT if kind is not Kind.FLOAT else math.isnan(kind.missing)


def test_the_steps_table_begins_with_the_core_columns() -> None:
    assert TABLES["steps"].column_names[: len(CORE)] == CORE


def test_every_table_of_the_design_is_there() -> None:
    named = {"steps", "parameters", "modules", "evaluations", "loader", "collectives", "processes", "gpus", "stacks"}
    assert named <= set(TABLES)


@every_case("table", TABLES.values(), ids=lambda table: table.name)
def test_every_table_says_what_a_row_is_and_why_it_may_be_empty(table: Table) -> None:
    assert table.a_row_is and table.empty_because.endswith(".")
    assert len(set(table.column_names)) == len(table.columns)
    assert table.first_segment_rows <= table.segment_rows


@every_case(("table", "column"), columns(), ids=lambda part: part.name)
def test_every_column_can_be_typed_in_sql_and_says_what_it_means(table: Table, column: Column) -> None:
    assert re.fullmatch(r"[a-z][a-z_]*", column.name)
    assert len(column.description) > 3 and "\n" not in column.description


@every_case("table", TABLES.values(), ids=lambda table: table.name)
def test_every_tables_description_fits_into_a_segments_header(table: Table) -> None:
    assert _describe(table)
