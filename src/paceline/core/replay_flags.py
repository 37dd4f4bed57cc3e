"""Flags of a replay that would do nothing beside others are refused."""

from __future__ import annotations

from pathlib import Path

from paceline.errors import ConfigError


def refuse_idle(names: list[str], table: bool, picture: str | None, lines: dict[str, bool]) -> None:
    """ConfigError for flags that would do nothing beside others, and for a picture whose name is another kind's."""
    instead = "--picture" if picture is not None else "--table" if table else None
    if instead is None and len(names) > 1:
        raise ConfigError(
            "--discipline", ",".join(names), "one of them; several with --table, or with --picture FILE.svg"
        )
    if table and picture is not None:
        raise ConfigError("--table", table, "left out beside --picture, which is drawn instead")
    for flag, given in lines.items():
        if given and instead is not None:
            raise ConfigError(flag, given, f"left out beside {instead}: it is of the lines that are printed")
    if picture is not None and Path(picture).suffix.lower() != ".svg":
        raise ConfigError("--picture", picture, "a file whose name ends in .svg, which is what is drawn")
