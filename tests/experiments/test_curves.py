"""The curves of a run in Parquet: what other programs read is what `result.json` holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dualcba.experiments import Hardware, Loader, Spec
from dualcba.experiments.curves import CURVES, curve_files, curve_table, write_curves
from dualcba.experiments.parquet import Column, parquet
from dualcba.experiments.pool import run_specs

Rows = list[tuple[Any, ...]]
Reader = Callable[[Path], Rows]


def by_pyarrow(path: Path) -> Rows:
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def by_polars(path: Path) -> Rows:
    rows: Rows = pytest.importorskip("polars").read_parquet(path).rows()
    return rows


def by_duckdb(path: Path) -> Rows:
    rows: Rows = pytest.importorskip("duckdb").sql(f"select * from '{path}'").fetchall()
    return rows


def by_pandas(path: Path) -> Rows:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.read_parquet(path)
    frame = frame.astype(object).where(frame.notna(), None)
    return list(frame.itertuples(index=False, name=None))


READERS = [by_pyarrow, by_polars, by_duckdb, by_pandas]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("rows", [0, 1, 8, 1001])
def test_all_kinds_of_values(read: Reader, rows: int, tmp_path: Path) -> None:
    columns = [
        Column("text", "text", [f"é 漢 {k % 7}" * (k % 3) for k in range(rows)]),
        Column("whole", "int", [(-1) ** k * 2**k % 2**62 for k in range(rows)]),
        Column("some", "int", [None if k % 3 else k for k in range(rows)], optional=True),
        Column("real", "float", [k / 7 for k in range(rows)]),
        Column("none", "float", [None] * rows, optional=True),
    ]
    path = tmp_path / "table.parquet"
    path.write_bytes(parquet(columns, {"a": "1"}))
    assert read(path) == list(zip(*(c.values for c in columns), strict=True))


def test_names_types_and_metadata(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    path.write_bytes(parquet([Column(f"c{k}", "int", [k]) for k in range(20)], {"a": "é"}))
    schema = pq.read_schema(path)
    assert schema.names == [f"c{k}" for k in range(20)]
    assert schema.metadata == {b"a": "é".encode()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, written as `dualcba run` writes them."""
    out = tmp_path_factory.mktemp("store")
    specs = [Spec(method="er", seed=k, eval_every=20) for k in (0, 1)]
    list(run_specs(specs, Loader(), Hardware(device="cpu"), out))
    return out


@pytest.mark.parametrize("read", READERS)
def test_each_run_has_its_curves(read: Reader, store: Path) -> None:
    for path in sorted(store.glob(f"*/{CURVES}")):
        result = json.loads(path.with_name("result.json").read_text())
        rows = read(path)
        assert {row[0] for row in rows} == {path.parent.name}
        assert {row[1:6] for row in rows} == {("er", "digits", "online", 100, result["seed"])}
        found: dict[str, Any] = {"anytime": {}, "task end": {}}
        for *_, moment, statistics, step, task, scored, accuracy in rows:
            found[moment].setdefault((statistics, step, task), {})[scored] = accuracy
        curves = result["anytime"]
        assert found["anytime"] == {
            (statistics, step, task): dict(enumerate(accuracies))
            for statistics in ("bn", "ibn")
            for step, task, accuracies in zip(
                curves["step"], curves["task"], curves[statistics], strict=True
            )
        }
        assert found["task end"] == {
            (statistics, step, task): dict(enumerate(accuracies))
            for statistics, matrix in result["accuracy_matrix"].items()
            for task, (step, accuracies) in enumerate(zip(result["task_ends"], matrix, strict=True))
        }


def test_files_of_many_runs_are_one_table(store: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    query = f"select seed, avg(accuracy) from '{store}/*/{CURVES}' where moment = 'task end' and "
    rows = duckdb.sql(query + "statistics = 'bn' and task = 4 group by seed order by seed")
    wanted = [
        (r["seed"], pytest.approx(r["scores"]["bn"]["acc"]))
        for r in map(json.loads, (p.read_text() for p in sorted(store.glob("*/result.json"))))
    ]
    assert rows.fetchall() == wanted


def test_the_version_of_the_columns_and_the_spec_are_in_the_file(store: Path) -> None:
    content = next(store.glob(f"*/{CURVES}")).read_bytes()
    assert b"dualcba.schema\x18\x011" in content
    assert b'"method": "er"' in content


@pytest.mark.parametrize("read", READERS)
def test_a_result_of_an_earlier_version_has_no_steps_of_task_ends(
    read: Reader, store: Path, tmp_path: Path
) -> None:
    result = json.loads(next(store.glob("*/result.json")).read_text())
    del result["task_ends"]
    write_curves(tmp_path / CURVES, result)
    steps = {row[8] for row in read(tmp_path / CURVES) if row[6] == "task end"}
    assert steps == {None}


def test_a_run_without_curves_has_its_task_ends(tmp_path: Path) -> None:
    result = {
        "method": "er", "dataset": "digits", "setting": "online", "buffer": 1, "seed": 0,
        "accuracy_matrix": {"bn": [[50.0]]}, "anytime": {}, "spec": {}, "versions": {},
    }  # fmt: skip
    path = tmp_path / "a-run" / CURVES
    for name, write in curve_files(result).items():
        write(path.with_name(name))
    assert path.read_bytes() == curve_table(result, "a-run")
    write_curves(path, result | {"accuracy_matrix": {}})
    assert path.read_bytes()[:4] == b"PAR1"
