"""The commands, and how their errors are shown."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from paceline.cli.bench import app as bench
from paceline.cli.disciplines import disciplines
from paceline.cli.extras import extra_with
from paceline.cli.fit import fit
from paceline.cli.idle_flags import CheckedCommand
from paceline.cli.numbers import engine_words, numbered
from paceline.cli.plan import plan
from paceline.cli.profile import profile
from paceline.cli.serve import serve
from paceline.cli.simulate import simulate
from paceline.errors import ConfigError, EngineDeadError, PacelineError

app = typer.Typer(
    name="paceline",
    help="Paceline serves language models; its heart is its scheduler.",
    add_completion=False,
    rich_markup_mode=None,  # the framed help cuts long flags off
    pretty_exceptions_enable=False,
)
app.command(cls=CheckedCommand)(numbered(serve, engine_words))
app.command(cls=CheckedCommand, short_help="Say how requests can be scheduled.")(disciplines)
app.add_typer(bench, short_help="Measure servers, or an engine without one.")
app.command(cls=CheckedCommand, short_help="Measure a model's step times here, for simulate --profile.")(
    numbered(profile, engine_words)
)
app.command(cls=CheckedCommand, short_help="Fit step times to a saved run, for simulate --engine.")(numbered(fit))
app.command(cls=CheckedCommand, short_help="Replay traffic on a simulated replica or cluster.")(simulate)
app.command(cls=CheckedCommand)(plan)


@app.command(short_help="Play a script through a discipline with a fake model.")
def replay(
    script: Annotated[str, typer.Argument(help="JSON or JSON lines; - reads standard input.")],
    discipline: Annotated[str | None, typer.Option(help="Play it under this discipline instead.")] = None,
    order: Annotated[str | None, typer.Option(help="Play it under this order instead.")] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(help="A number of the discipline's or the order's, instead; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    blocks: Annotated[bool, typer.Option("--blocks", help="Show the block ids of running sequences.")] = False,
    timing: Annotated[bool, typer.Option("--timing", help="Show microseconds of schedule and complete.")] = False,
    requests: Annotated[
        bool, typer.Option("--requests", help="Show in the summary where each request's time went.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Print one line of a table instead; of several disciplines (A,B).")
    ] = False,
    picture: Annotated[
        str | None,
        typer.Option(help="Draw it instead; several disciplines (A,B) below each other.", metavar="FILE.svg"),
    ] = None,
) -> int:
    """Play a script through a discipline with a fake model: one JSON object per step. Status 1: it stalled."""
    from pathlib import Path

    from paceline.core.replay import show

    try:
        text = sys.stdin.read() if script == "-" else Path(script).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("SCRIPT", script, f"a text file that can be read ({error})") from None
    return show(text, discipline, table, picture, order, knob, blocks=blocks, timing=timing, requests=requests)


@app.command()
def version() -> int:
    """Print the version."""
    from paceline import __version__

    print(__version__)
    return 0


def run(arguments: list[str]) -> int:
    """The exit status of the command that `arguments` name."""
    try:
        return int(app(arguments, prog_name="paceline", standalone_mode=False) or 0)
    except EngineDeadError as error:
        return _say(f"{error}; the machine may have too little memory: lower --kv-cache-memory or --max-model-len")
    except PacelineError as error:
        return _say(str(error))
    except MemoryError:
        return _say("out of memory; lower --kv-cache-memory or --max-model-len, or choose a smaller model")
    except ModuleNotFoundError as error:
        if (extra := extra_with(error.name)) is None:
            raise
        return _say(f"{error.name} is not installed: this needs the {extra} extra; pip install 'paceline[{extra}]'")
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        # Usage errors: typer's own kind, wherever it keeps its classes.
        if not hasattr(error, "format_message"):
            raise
        command = getattr(getattr(error, "ctx", None), "command_path", None) or _command(arguments)
        return _say(f"{_plain(error.format_message())}; see '{command} --help'")


def _command(arguments: list[str]) -> str:
    """The command that was typed, as far as it is one."""
    known = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]
    return f"paceline {arguments[0]}" if arguments and arguments[0] in (*known, "bench") else "paceline"


def _plain(message: str) -> str:
    return message.rstrip(".").replace("Value error, ", "")


def _say(message: str) -> int:
    print("paceline: " + " ".join(message.split()), file=sys.stderr)
    return 2
