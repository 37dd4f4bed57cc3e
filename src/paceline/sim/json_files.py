"""The JSON files that the simulator reads, and those it writes for itself, with their format in them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.errors import ModelError


def read_json(path: Path, flag: str = "", mend: str = "") -> Any:
    """What the file holds. ModelError, naming the `flag` it was given by, and how to `mend` that it cannot be read."""
    named = f"{flag} {path}".strip()
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"{named}: cannot be read ({reason}){mend}") from None
    except ValueError as error:
        raise ModelError(f"{named}: is not JSON ({error})") from None


def read_own(path: Path, flag: str, file_format: str, command: str) -> dict[str, Any]:
    """The fields of a file that `command` wrote with `write_own`. ModelError says what is wrong with it."""
    values = read_json(path, flag)
    if not isinstance(values, dict) or values.pop("format", None) != file_format:
        raise ModelError(f"{flag} {path}: is not a {file_format} file; make one with `{command}`")
    return values


def write_own(path: Path, file_format: str, value: Any) -> None:
    """The fields of a dataclass."""
    path.write_text(json.dumps({"format": file_format, **asdict(value)}, indent=1) + "\n", encoding="utf-8")
