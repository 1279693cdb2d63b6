# SPDX-License-Identifier: Apache-2.0
"""Where private tables come from: files, frames, databases, Ibis expressions.

Promise    Opening a source reads its schema (names and types), which is public, and no row. What an engine
           says when that fails is not passed on: it may quote what it read.
CSV        A CSV file has no types, and guessing them from its rows would make the schema depend on the data.
           So the first line names the columns and every column is text; `types` says which are something
           else, and a text is read as a number where one is wanted. A text that does not fit its type is
           missing.
Lines      A row is one line, and every line is read alone: it ends where a line ends (CR, LF or both), also
           within quotes. A quote that is not closed would else swallow the lines of others. A line that is no
           row (too few fields, too many, text after a closing quote, not UTF-8) is left out, and no other.
Collation  A DuckDB whose default collation is not binary is refused: to it, different texts may be equal.
Frames     A pandas column of objects is text.
Spill      DuckDB writes what does not fit into memory to a folder of its own under the system's folder for
           temporary files, and removes it. The rows in it are as they are: keep that folder on a safe disk.
"""

import csv
import glob
import gzip
import importlib.util
import os
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sfumato.errors import InvalidParameterError, SfumatoError

__all__ = ["opened"]

Opened = tuple[Any, Any, bool]  # an Ibis table, its engine, and whether its texts may be numbers


def opened(source: Any, *, engine: Any, table: str | None, types: Mapping[str, str] | None) -> Opened:
    """Return the table that a source is, in its engine."""
    _require_ibis()
    failed = ""
    try:
        return _typed(_told_apart(_opened(source, engine, table)), types)
    except SfumatoError:
        raise
    except Exception as error:  # of an engine or a file: its words may quote what it read
        failed = type(error).__name__
    raise InvalidParameterError(
        f"the source could not be opened as a table ({failed}). Give the path of a CSV or Parquet file, a "
        "pandas, polars or pyarrow frame, an Ibis table, or the URL of a database with table=..."
    )


def _require_ibis() -> None:
    if importlib.util.find_spec("ibis") is None:
        raise InvalidParameterError("private tables need Ibis and DuckDB: pip install sfumato[tables]")


def _opened(source: Any, engine: Any, table: str | None) -> Opened:
    if isinstance(source, str) and "://" in source and table is not None:
        return _of_database(source, table, engine)
    if table is not None:
        raise InvalidParameterError("table= names a table of a database, whose URL must then be the source.")
    if isinstance(source, str | os.PathLike):
        return _of_file(os.fspath(source), engine or _duckdb())
    import ibis

    if isinstance(source, ibis.Table):
        if engine is not None:
            raise InvalidParameterError("an Ibis table has an engine of its own: leave engine= out.")
        return source, source.get_backend(), False
    return _of_frame(source, engine)


def _told_apart(found: Opened) -> Opened:
    """Refuse an engine for which all texts have a collation; those of single columns are undone (`keys`)."""
    engine = found[1]
    if engine.name == "duckdb":
        collation = str(engine.con.sql("SELECT current_setting('default_collation')").fetchall()[0][0])
        if collation.lower() not in ("", "binary", "c", "posix"):
            raise InvalidParameterError(
                f"DuckDB's default collation is {collation!r}, by which different texts may be equal. Set it "
                "to 'binary' before the table is opened."
            )
    return found


def _duckdb() -> Any:
    import ibis

    folder = Path(tempfile.gettempdir()) / f"sfumato-{uuid.uuid4().hex}"
    return ibis.duckdb.connect(temp_directory=str(folder))


def _of_database(url: str, table: str, engine: Any) -> Opened:
    import ibis

    if engine is not None:
        raise InvalidParameterError(
            "a URL is connected to by itself: leave engine= out, or give an Ibis table."
        )
    connected = ibis.connect(url)
    return connected.table(table), connected, False


def _of_file(path: str, engine: Any) -> Opened:
    for ending, read in _READERS.items():
        if path.removesuffix(".gz").endswith(ending):
            return read(path, engine)
    raise InvalidParameterError(
        f"{path!r} does not end in {', '.join(_READERS)}, so its format is not known. Convert it, or open it "
        "with Ibis and give the Ibis table; a database needs table=..."
    )


def _of_parquet(path: str, engine: Any) -> Opened:
    return engine.read_parquet(path), engine, False


def _of_csv(separator: str) -> Callable[[str, Any], Opened]:
    def read(path: str, engine: Any) -> Opened:
        if engine.name != "duckdb":  # Spark: text, unless it is told to infer
            return engine.read_csv(path, header=True, sep=separator), engine, True
        view = f"sfumato_{uuid.uuid4().hex}"
        rows = _rows_of_lines(path, separator, _header(path, separator))
        engine.raw_sql(f"CREATE TEMPORARY VIEW {view} AS {rows}")
        return engine.table(view), engine, True

    return read


def _rows_of_lines(path: str, separator: str, names: list[str]) -> str:
    """Return SQL for DuckDB that reads lines without a look at quotes, and splits each of them."""
    # Nothing is detected: what DuckDB would find out depends on the rows. No line has the delimiter \x01, or
    # what comes after it is left out with that line.
    lines = (
        f"read_csv({_quoted(path)}, columns = {{'line': 'VARCHAR'}}, auto_detect = false, header = true, "
        "delim = chr(1), quote = '', escape = '', comment = '', ignore_errors = true, strict_mode = false, "
        r"new_line = '\n')"  # CR ends a line too; without this, CR CR LF would take the next line with it
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


def _unquoted(field: str) -> str:
    inner = f"replace(substr({field}, 2, length({field}) - 2), '\"\"', '\"')"
    return f"nullif(CASE WHEN starts_with({field}, '\"') THEN {inner} ELSE {field} END, '')"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _named(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _header(path: str, separator: str) -> list[str]:
    """Return the names in the first line of a file, or of the first of several."""
    found = sorted(glob.glob(path)) or [path]
    open_text = gzip.open if found[0].endswith(".gz") else open
    # More than the first line is decoded: a bad byte further down must not be an error.
    with open_text(found[0], "rt", encoding="utf-8-sig", errors="replace") as lines:
        names = next(csv.reader([lines.readline()], delimiter=separator), [])
    if not names or len(set(names)) < len(names) or not all(names):
        raise InvalidParameterError(
            f"the first line of {path!r} must name the columns, each differently: a CSV file has no other "
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
            + ". Give a path, a pandas, polars or pyarrow frame, or an Ibis table."
        )
    if library == "pandas":
        objects = [name for name, kind in frame.dtypes.items() if str(kind) == "object"]
        frame = frame.astype(dict.fromkeys(objects, "string")) if objects else frame
    connected = _duckdb()
    connected.con.register("frame", frame)
    return connected.table("frame"), connected, False


def _typed(found: Opened, types: Mapping[str, str] | None) -> Opened:
    table, engine, texts = found
    if types is None:
        return found
    unknown = [name for name in types if name not in table.columns]
    if unknown:
        raise InvalidParameterError(
            f"types names columns that are not there: {', '.join(unknown)}. "
            f"The table has: {', '.join(table.columns)}."
        )
    return table.mutate(**{name: table[name].try_cast(kind) for name, kind in types.items()}), engine, texts
