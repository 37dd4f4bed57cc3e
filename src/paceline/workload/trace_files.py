"""Reading trace files: plain or gzip, with errors that name the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.workload.requests import WorkloadError
from paceline.workload.trace_faults import BadRow, Faults

Row = dict[str, Any]


def read_text(path: Path) -> str:
    """The file's text. WorkloadError where it cannot be read, or is none."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise WorkloadError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise WorkloadError(f"{path}: this is a directory, not a trace") from None
    except UnicodeDecodeError as error:
        text = f"byte {error.start + 1:,} is no UTF-8"
        raise WorkloadError(f"{path}: this is no text ({text}); {_TEXT}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from None
    if (at := text.find("\0")) >= 0:
        raise WorkloadError(f"{path}: this is no text (character {at + 1:,} is a zero); {_TEXT}")
    return text


_TEXT = "a trace is CSV, JSON or JSON lines, plain or gzip"


def csv_rows(path: Path, text: str, faults: Faults) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """(column names in lower case, (line number, row) of each row)."""
    reader = csv.reader(io.StringIO(text))

    def lines() -> Iterator[list[str]]:
        try:
            yield from reader
        except csv.Error as error:
            raise WorkloadError(f"{path}, line {reader.line_num}: not CSV: {error}") from None

    every = lines()
    header = [name.strip().lower() for name in next(every, [])]
    if not header:
        raise WorkloadError(f"{path}: the file is empty")

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        for cells in every:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            if len(cells) < len(header):
                detail = f"{len(cells)} cells, and the header has {len(header)} columns"
                faults.take(reader.line_num, BadRow("rows with too few cells", detail))
                continue
            yield reader.line_num, dict(zip(header, cells, strict=False))

    return header, rows()


def json_lines(text: str, faults: Faults) -> Iterator[tuple[int, Row]]:
    """(line number, object) of each line."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.take(number, BadRow("lines that are not JSON", f"not JSON: {error}"))
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            faults.take(number, no_object(value))


def no_object(value: Any) -> BadRow:
    """Where an object is needed."""
    return BadRow("rows that are no JSON objects", f"a JSON object is needed, this is a {type(value).__name__}")


def whole_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}: not JSON: {error}") from None
