# SPDX-License-Identifier: Apache-2.0
"""Sources of private tables: files, frames, databases and Ibis expressions.

Guarantee  Opening a source reads its schema (names and types), which is public, and no row.
           A CSV file has no types, and guessing them from its rows would make the schema depend on the data.
           So the first line names the columns, and every column is text; `types` declares other types
           (`schema`). Names are public: a first line with numbers is refused as a row, one of texts is not.
           A text that does not fit its declared type is missing.
           A row of a CSV file is one line, and each line is read alone. It ends at CR, LF or both, also
           within quotes; otherwise a quote that is not closed would swallow the lines of others. A line that
           is not a row (too few or too many fields, text after a closing quote, not UTF-8, longer than 2 MiB)
           is left out, and no other line is. DuckDB and Spark read the same rows; other engines may not read
           CSV.
           NaN is a missing value from the start, in every source. Parquet files state the least and the
           largest value of a column without its NaN, and DuckDB answers conditions by them: whether the NaN
           of one row is at most 20 would depend on the values of the others.
Edge cases In DuckDB the first line of each file is the header. Spark cannot tell which line is first, so
           every line that equals the first line of one of the files is left out there. DuckDB reads times in
           milliseconds of Parquet files as microseconds, and fails if one does not fit; such columns are left
           out of the table, by the schema of the file. Columns in the names of folders
           (visits/year=2024/a.parquet) are read if the path names them (visits/year=*/*.parquet), always as
           text, as names of folders may be private. A pandas column of objects is text (`pandas_frames`); for
           polars and pyarrow see `arrow_frames`. DuckDB writes rows that do not fit into memory, unencrypted,
           to a folder of its own under the system's folder for temporary files, and removes it afterwards.
Failure    An engine's error is not passed on, as it may quote what it read. These are refused: a DuckDB whose
           default collation is not binary, because different texts may be equal in it; SQLite, which does not
           enforce its types, so that rows decide whether they fit; and a PostgreSQL database with an encoding
           that has texts outside UTF-8.
"""

import csv
import glob
import gzip
import importlib
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sfumato._extras import how_to_install
from sfumato.errors import InvalidParameterError, MissingDependencyError, SfumatoError
from sfumato.statistics.sources.arrow_frames import readable
from sfumato.statistics.sources.schema import declared, without_nan

__all__ = ["is_lines", "opened"]

_LONGEST_LINE = 2**21  # bytes; DuckDB's own limit
_LINES = (".csv", ".tsv")
_ALL_IN_UTF8 = ("UTF8", "LATIN1")  # PostgreSQL's names of encodings whose texts all have a form in UTF-8
Opened = tuple[Any, Any]  # an Ibis table, and its engine


def opened(source: Any, *, engine: Any, table: str | None, types: Mapping[str, str]) -> Opened:
    """Return the table of a source, with the declared types, and its engine."""
    _require_ibis()
    try:
        found, backend = _opened(source, engine, table)
        try:
            if is_lines(source):
                _require_a_header(found.columns, types)
            typed = declared(_trusted((found, backend))[0], types, engine=backend.name)
            return without_nan(typed), backend
        except Exception:
            if table is not None:  # close the connection that was opened above
                backend.disconnect()
            raise
    except SfumatoError:
        raise
    except Exception:  # of an engine or a file: its message and class may reveal what it read
        pass
    raise InvalidParameterError(
        "the source could not be opened as a table. Pass the path of a CSV or Parquet file, a "
        "pandas, polars or pyarrow frame, an Ibis table, or the URL of a database with table=..."
    )


def is_lines(source: Any) -> bool:
    """Return whether a source is a CSV file, in which lines that are not rows are left out.

    >>> is_lines("people.csv.gz"), is_lines("people.parquet")
    (True, False)
    """
    return isinstance(source, str | os.PathLike) and os.fspath(source).removesuffix(".gz").endswith(_LINES)


def _require_a_header(names: Sequence[str], types: Mapping[str, str]) -> None:
    """Refuse a first line with numbers, which is a row: names are public. The message must not quote it."""
    if any(_is_number(name) for name in names if name not in types):
        raise InvalidParameterError(
            "the first line of a CSV file names its columns, and these names are public, but a name in this "
            "file is a number, as if the line were a row of data. Add a line with names in front. If it is "
            "right, declare the type of each such column: types={...}."
        )


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _require_ibis() -> None:
    try:
        importlib.import_module("ibis")
    except ImportError as error:
        raise MissingDependencyError(
            f"private tables need Ibis and DuckDB, which are not installed. {how_to_install('tables')}"
        ) from error


def _opened(source: Any, engine: Any, table: str | None) -> Opened:
    if isinstance(source, str) and "://" in source and table is not None:
        return _of_database(source, table, engine)
    if table is not None:
        raise InvalidParameterError(
            "table= names a table of a database: pass the URL of the database as the source."
        )
    if isinstance(source, str) and source.startswith(("postgresql://", "postgres://", "duckdb://")):
        raise InvalidParameterError("a database has several tables. Pass the name of one: table=...")
    if isinstance(source, str | os.PathLike):
        return _of_file(os.fspath(source), engine or _duckdb())
    import ibis

    if isinstance(source, ibis.Table):
        if engine is not None:
            raise InvalidParameterError("an Ibis table has its own engine: remove engine=.")
        return source, source.get_backend()
    return _of_frame(source, engine)


def _trusted(found: Opened) -> Opened:
    """Raise for an engine whose texts have a collation, or which does not enforce its schema."""
    engine = found[1]
    if engine.name == "sqlite":
        raise InvalidParameterError(
            "SQLite keeps any value in a column of any type, so one row could change how others are read. "
            "Copy the table to a Parquet file or into DuckDB, and open that."
        )
    if engine.name == "postgres":
        encoding = str(engine.con.info.parameter_status("server_encoding"))
        if encoding not in _ALL_IN_UTF8:
            raise InvalidParameterError(
                f"the encoding of this PostgreSQL database is {encoding}, in which a text may have no form "
                "in UTF-8 and make a query fail. Copy the table to a database in UTF8 or to a Parquet file."
            )
    if engine.name == "duckdb":
        collation = str(engine.con.sql("SELECT current_setting('default_collation')").fetchall()[0][0])
        if collation.lower() not in ("", "binary", "c", "posix"):
            raise InvalidParameterError(
                f"DuckDB's default collation is {collation!r}, by which different texts may be equal. Set it "
                "to 'binary' before you open the table."
            )
    return found


def _duckdb() -> Any:
    import ibis

    folder = Path(tempfile.gettempdir()) / f"sfumato-{uuid.uuid4().hex}"
    return ibis.duckdb.connect(temp_directory=str(folder))


def _of_database(url: str, table: str, engine: Any) -> Opened:
    import ibis

    if engine is not None:
        raise InvalidParameterError("a URL opens its own connection: remove engine=, or pass an Ibis table.")
    connected = ibis.connect(url)
    try:
        return connected.table(table), connected
    except Exception:
        connected.disconnect()
        raise


def _of_file(path: str, engine: Any) -> Opened:
    for ending, read in _READERS.items():
        if path.removesuffix(".gz").endswith(ending):
            _require_there(path)
            return read(path, engine)
    raise InvalidParameterError(
        f"{path!r} does not end in {', '.join(_READERS)}, so its format is not known. Convert it, or open it "
        "with Ibis and pass the Ibis table; a database needs table=..."
    )


def _require_there(path: str) -> None:
    if "://" not in path and not os.path.exists(path) and not glob.glob(path, recursive=True):
        raise InvalidParameterError(f"there is no file {path!r}. Pass the path of a file that exists.")


def _of_parquet(path: str, engine: Any) -> Opened:
    readers = {"duckdb": _duckdb_parquet, "pyspark": _spark_parquet}
    return readers.get(engine.name, _plain_parquet)(path, engine), engine


def _plain_parquet(path: str, engine: Any) -> Any:
    return engine.read_parquet(path)


def _duckdb_parquet(path: str, engine: Any) -> Any:
    # By default DuckDB would decide by the names of all folders whether there are such columns.
    named = "=" in os.path.dirname(path)
    table = engine.read_parquet(path, hive_partitioning=named, hive_types_autocast=False)
    return table.drop(*(name for name in table.columns if name in _in_milliseconds(path, engine)))


def _in_milliseconds(path: str, engine: Any) -> set[str]:
    """Return the columns of Parquet files with times in milliseconds, by their schemas."""
    coarse = "logical_type LIKE 'TimestampType(%' AND logical_type LIKE '%MILLIS=Milli%'"
    query = f"SELECT name, num_children, coalesce({coarse}, false) FROM parquet_schema(?)"
    found, fields = set[str](), iter(engine.con.execute(query, [path]).fetchall())
    for _, children, _ in fields:  # the root of one file; its fields are read here
        columns = [_with_fields(fields) for _ in range(children)]
        found |= {name for name, is_coarse in columns if is_coarse}
    return found


def _with_fields(fields: Iterator[tuple[str, int | None, bool]]) -> tuple[str, bool]:
    """Return the next field of a schema, and whether it or a field within it has milliseconds."""
    name, children, is_coarse = next(fields)
    within = [_with_fields(fields)[1] for _ in range(children or 0)]
    return name, is_coarse or any(within)


def _spark_parquet(path: str, engine: Any) -> Any:
    option = "spark.sql.sources.partitionColumnTypeInference.enabled"
    conf = engine.raw_sql("SELECT 1").sparkSession.conf
    before = conf.get(option)
    conf.set(option, "false")
    try:
        return engine.read_parquet(path)
    finally:
        conf.set(option, before)


def _of_csv(separator: str) -> Callable[[str, Any], Opened]:
    def read(path: str, engine: Any) -> Opened:
        view = f"sfumato_{uuid.uuid4().hex}"
        if engine.name == "duckdb":
            rows = _rows_of_lines(path, separator, _header(path, separator))
            engine.raw_sql(f"CREATE TEMPORARY VIEW {view} AS {rows}")
        elif engine.name == "pyspark":
            _spark_rows_of_lines(path, separator, engine).createTempView(view)
        else:
            raise InvalidParameterError(
                f"a CSV file is read by DuckDB or Spark, not by {engine.name}, whose reader may guess types "
                "from rows. Remove engine=, or convert the file to Parquet."
            )
        return engine.table(view), engine

    return read


def _rows_of_lines(path: str, separator: str, names: list[str]) -> str:
    """Return SQL for DuckDB that reads lines regardless of quotes, and splits each of them."""
    # Nothing is detected, as DuckDB would detect it from the rows. Lines do not contain the delimiter \x01; a
    # line that does is left out.
    lines = (
        f"read_csv({_quoted(path)}, columns = {{'line': 'VARCHAR'}}, auto_detect = false, header = true, "
        "delim = chr(1), quote = '', escape = '', comment = '', ignore_errors = true, strict_mode = false, "
        r"new_line = '\n')"  # CR ends a line, too; without this, CR CR LF would swallow the next line
    )
    delimiter = _quoted(separator)
    field = f'''{separator}("(?:[^"]|"")*"|[^"{separator}][^{separator}]*|)'''
    fields = (
        f"CASE WHEN NOT contains(line, '\"') THEN string_split(line, {delimiter}) "
        f"WHEN regexp_full_match({delimiter} || line, {_quoted(f'(?:{field})*')}) "
        f"THEN regexp_extract_all({delimiter} || line, {_quoted(field)}, 1) END"
    )
    columns = ", ".join(f"{_unquoted(f'fields[{i}]')} AS {_named(name)}" for i, name in enumerate(names, 1))
    return f"SELECT {columns} FROM (SELECT {fields} AS fields FROM {lines}) WHERE len(fields) = {len(names)}"


def _spark_rows_of_lines(path: str, separator: str, engine: Any) -> Any:
    """Return a Spark frame of the same rows. With Spark's own reader one line could fail the whole query."""
    sql: Any = importlib.import_module("pyspark.sql.functions")  # installed if the engine is Spark
    session = engine.raw_sql("SELECT 1").sparkSession
    # Only the first block of a file begins with its header.
    first = session.read.text(path).where("_metadata.file_block_start = 0").select("value").head()
    header = "" if first is None else str(first[0])
    names = _names(header, separator, path)
    # Hadoop leaves out longer lines, or truncates them at the end of a block. It skips a byte order mark.
    longest = {"mapreduce.input.linerecordreader.line.maxlength": str(_LONGEST_LINE)}
    lines = session.read.options(**longest).text(path)
    # Possessive quantifiers: with backtracking a long line would overflow Java's stack.
    field = f'''{separator}("[^"]*+(?:""[^"]*+)*+"|[^"{separator}][^{separator}]*+|)'''
    line = sql.concat(sql.lit(separator), sql.col("value"))
    lines = lines.where((sql.col("value") != header) & (sql.octet_length("value") < _LONGEST_LINE))
    split = lines.select(
        line.alias("line"), sql.regexp_extract_all(line, sql.lit(field), sql.lit(0)).alias("fields")
    )
    # Text between fields is lost in the fields, and a byte that is not UTF-8 changes, so both are detected.
    rows = split.where((sql.size("fields") == len(names)) & (sql.array_join("fields", "") == sql.col("line")))
    return rows.select(*(_spark_field(sql, i).alias(name) for i, name in enumerate(names)))


def _spark_field(sql: Any, place: int) -> Any:
    field = sql.substring(sql.get("fields", sql.lit(place)), 2, _LONGEST_LINE)
    inner = sql.replace(sql.substring(field, 2, sql.length(field) - 2), sql.lit('""'), sql.lit('"'))
    return sql.nullif(sql.when(field.startswith('"'), inner).otherwise(field), sql.lit(""))


def _unquoted(field: str) -> str:
    inner = f"replace(substr({field}, 2, length({field}) - 2), '\"\"', '\"')"
    return f"nullif(CASE WHEN starts_with({field}, '\"') THEN {inner} ELSE {field} END, '')"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _header(path: str, separator: str) -> list[str]:
    """Return the names in the first line of a file, or of the first of several files."""
    found = sorted(glob.glob(path)) or [path]
    open_text = gzip.open if found[0].endswith(".gz") else open
    # More than the first line is decoded: a bad byte further down must not be an error.
    with open_text(found[0], "rt", encoding="utf-8-sig", errors="replace") as lines:
        return _names(lines.readline(), separator, path)


def _names(header: str, separator: str, path: str) -> list[str]:
    names = next(csv.reader([header], delimiter=separator), [])
    if not names or len(set(names)) < len(names) or not all(names):
        raise InvalidParameterError(
            f"the first line of {path!r} must name the columns, each differently, as a CSV file has no other "
            "schema. Add such a line."
        )
    return names


_READERS: dict[str, Callable[[str, Any], Opened]] = {
    ".parquet": _of_parquet,
    ".csv": _of_csv(","),
    ".tsv": _of_csv("\t"),
}


def _of_frame(frame: Any, engine: Any) -> Opened:
    library = type(frame).__module__.split(".")[0]
    if engine is not None or library not in ("pandas", "polars", "pyarrow") or not hasattr(frame, "columns"):
        raise InvalidParameterError(
            f"a private table cannot be made from {type(frame).__name__}"
            + (" in another engine" if engine is not None else "")
            + ". Pass a path, a pandas, polars or pyarrow frame, or an Ibis table."
        )
    connected = _duckdb()
    connected.con.register("frame", readable(frame))
    return connected.table("frame"), connected
