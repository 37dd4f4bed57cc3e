"""The command line. Commands import what they need when they run, so that the light ones start at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `paceline`. Ends the process with the command's exit status.

    What the user can mend is one line on standard error and status 2; a traceback is always a bug of ours.
    """
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    try:
        from paceline.cli.app import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        return _without_server_extra(arguments)
    try:
        return run(arguments)
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing may be flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _without_server_extra(arguments: list[str]) -> int:
    if arguments[:1] == ["replay"]:
        from paceline.core.replay import main as replay

        return replay(arguments[1:])
    from paceline.cli.extras import extra_for

    extra = extra_for(arguments)
    print(f"paceline: this command needs the {extra} extra; pip install 'paceline[{extra}]'", file=sys.stderr)
    return 2
