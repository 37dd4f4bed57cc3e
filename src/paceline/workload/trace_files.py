"""Reading trace files: plain or gzip, with errors that name the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.workload.requests import WorkloadError

Row = dict[str, Any]


class Faults:
    """What to do with rows that make no sense: refuse the file, or leave them out and count them."""

    def __init__(self, path: Path, skip: bool) -> None:
        self.path = path
        self.skip = skip
        self.counts: Counter[str] = Counter()

    def row(self, line: int, reason: str, detail: str) -> None:
        """A row at fault. Raises WorkloadError unless such rows are left out."""
        if not self.skip:
            raise WorkloadError(
                f"{self.path}, line {line}: {detail}; mend the file, or leave such rows out with --bad-rows skip"
            )
        self.counts[reason] += 1


def read_text(path: Path) -> str:
    """The file's text. WorkloadError where it cannot be read."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise WorkloadError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise WorkloadError(f"{path}: this is a directory, not a trace") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from None


def csv_rows(path: Path, text: str) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """(column names in lower case, (line number, row) of each row)."""
    reader = csv.reader(io.StringIO(text))
    header = [name.strip().lower() for name in next(reader, [])]
    if not header:
        raise WorkloadError(f"{path}: the file is empty")

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        for cells in reader:
            if cells and (len(cells) > 1 or cells[0].strip()):
                if len(cells) < len(header):
                    raise WorkloadError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells, and the header has {len(header)} columns"
                    )
                yield reader.line_num, dict(zip(header, cells, strict=False))

    return header, rows()


def json_lines(path: Path, text: str) -> Iterator[tuple[int, Row]]:
    """(line number, object) of each line."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise WorkloadError(f"{path}, line {number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise WorkloadError(f"{path}, line {number}: a JSON object is needed, this is a {type(value).__name__}")
        yield number, value


def whole_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise WorkloadError(f"{path}: not JSON: {error}") from None


def number(path: Path, line: int, column: str, value: Any) -> float:
    """A finite number, or WorkloadError."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise WorkloadError(f"{path}, line {line}: {column} is {value!r}, not a number") from None
    if found != found or found in (float("inf"), float("-inf")):
        raise WorkloadError(f"{path}, line {line}: {column} is {value!r}, not a finite number")
    return found


def count(path: Path, line: int, column: str, value: Any) -> int:
    """A whole number, or WorkloadError."""
    found = number(path, line, column, value)
    if found != int(found):
        raise WorkloadError(f"{path}, line {line}: {column} is {value!r}, not a whole number")
    return int(found)
