# SPDX-License-Identifier: Apache-2.0
"""Where tables of any type can be made: engines by SQL, and frames and files that DuckDB reads."""

import os
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ibis
import pyarrow as pa
import pyarrow.parquet as pq

from .kinds import Kind

__all__ = ["Arrow", "Engine", "Parquet", "Sql", "duckdb", "has_spark", "postgresql", "spark"]

Row = tuple[int, str, int, Any]  # who, a key, a number, and a value of the type
_TEXT = {"duckdb": "VARCHAR", "postgres": "TEXT", "pyspark": "STRING"}
_FLOAT = {"duckdb": "DOUBLE", "postgres": "DOUBLE PRECISION", "pyspark": "DOUBLE"}


@dataclass
class Sql:
    """An engine in which a table is made by SQL."""

    backend: Any

    @property
    def name(self) -> str:
        """What the engine is called."""
        return self.backend.name

    def source(self, kind: Kind, rows: Sequence[Row]) -> Any:
        """Return a new table of these rows."""
        parts = [self._row(kind, row) for row in rows] or [
            f"SELECT * FROM ({self._row(kind, (0, '', 0, None))}) AS t WHERE 1 = 0"
        ]
        name, query = ibis.util.gen_name("poison"), " UNION ALL ".join(parts)
        if self.name == "pyspark":
            # Computed once: Spark would plan all of these rows again for every question.
            self.backend.raw_sql(query).coalesce(1).localCheckpoint().createTempView(name)
        else:
            self.backend.con.execute(f"CREATE TABLE {name} AS {query}")
        return self.backend.table(name)

    def _row(self, kind: Kind, row: Row) -> str:
        who, key, number, value = row
        return (
            f"SELECT CAST({who} AS BIGINT) AS who, CAST('{key}' AS {_TEXT[self.name]}) AS k, "
            f"CAST({number} AS {_FLOAT[self.name]}) AS x, {kind.sql(value)} AS v"
        )


@dataclass
class Arrow:
    """Frames of Arrow, whose values need not mean anything."""

    name: str = "arrow"

    def source(self, kind: Kind, rows: Sequence[Row]) -> Any:
        """Return a frame of these rows."""
        who, keys, numbers, values = zip(*rows, strict=True) if rows else ((),) * 4
        return pa.table(
            {
                "who": pa.array(who, type=pa.int64()),
                "k": pa.array(keys, type=pa.string()),
                "x": pa.array(numbers, type=pa.float64()),
                "v": kind.array(list(values)),
            }
        )


@dataclass
class Parquet:
    """Parquet files in a folder."""

    folder: Path
    name: str = "parquet"

    def source(self, kind: Kind, rows: Sequence[Row]) -> Any:
        """Write a file of these rows, and return its path."""
        path = self.folder / f"{ibis.util.gen_name('poison')}.parquet"
        pq.write_table(Arrow().source(kind, rows), path)
        return path


Engine = Sql | Arrow | Parquet


@contextmanager
def duckdb() -> Iterator[Sql]:
    """Give a DuckDB in memory."""
    backend = ibis.duckdb.connect()
    yield Sql(backend)
    backend.disconnect()


@contextmanager
def postgresql(folder: Path) -> Iterator[Sql]:
    """Give a PostgreSQL server of our own, with its files in a folder."""
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    with patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(runtime)}):
        import pgserver

        server = pgserver.get_server(folder / "postgresql", cleanup_mode="stop")
        backend = ibis.connect(server.get_uri())
        yield Sql(backend)
        backend.disconnect()
        server.cleanup()


def has_spark() -> bool:
    """Return whether Spark can be started here."""
    java = shutil.which("java") is not None or "JAVA_HOME" in os.environ
    return find_spec("pyspark") is not None and java


@contextmanager
def spark(folder: Path) -> Iterator[Sql]:
    """Give a local Spark."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "localhost",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": str(folder),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        yield Sql(ibis.pyspark.connect(session))
        session.stop()
