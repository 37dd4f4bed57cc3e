"""Files that commands write: whether they can be written is known before anything is run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from paceline.cli.flag_sets import flag
from paceline.errors import ConfigError, PacelineError


def check_file(name: str, path: Path | None) -> None:
    """ConfigError unless the flag `name` is left out or names a file that can be written, in a folder that exists."""
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(name, str(path), f"a file in a folder that exists: there is no folder {folder}")
    if not path.name or path.is_dir():
        raise ConfigError(name, str(path), "a file, and this is a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ConfigError(name, str(path), "a file that can be written: there is no permission to")


def check_page(name: str, path: Path | None) -> None:
    """The same for a page with plots, which needs plotly."""
    check_file(name, path)
    if path is not None and find_spec("plotly") is None:
        raise PacelineError(f"{name} needs plotly, of the bench extra; pip install 'paceline[bench]'")


@dataclass(frozen=True)
class OutputFlags:
    """Where the figures of runs go."""

    result: Annotated[Path | None, flag("Write the figures to this file, as JSON under vLLM's names.")] = None
    save_result: Annotated[bool, flag("The same, to --result-dir under a name made of the run.", "--save-result")] = (
        False
    )
    save_detailed: Annotated[bool, flag("With an entry per request.", "--save-detailed", "--detailed")] = False
    result_dir: Annotated[Path, flag("Folder of --save-result.")] = Path(".")
    result_filename: Annotated[str | None, flag("Name there, instead of the one made up.")] = None
    html: Annotated[Path | None, flag("Write a report with plots: one file, no network needed.")] = None

    def check_outputs(self) -> None:
        """ConfigError for what cannot be written."""
        check_file("--result", self.result)
        if self.result_dir != Path(".") and not self.result_dir.is_dir():
            raise ConfigError("--result-dir", str(self.result_dir), "a folder that exists")
        if self.result_filename is not None:
            check_file("--result-filename", self.result_dir / self.result_filename)
        check_page("--html", self.html)

    def file(self, made_up: Callable[[], str]) -> Path | None:
        """Where the figures are to go; None: nowhere. `made_up`: a name for want of one."""
        if self.result is not None or not (self.save_result or self.save_detailed or self.result_filename):
            return self.result
        return self.result_dir / (self.result_filename or made_up())
