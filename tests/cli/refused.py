"""What the command line says where it refuses."""

from __future__ import annotations

import pytest

from paceline.cli.app import run


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line."""
    assert run(list(arguments)) == 2, arguments
    message = capsys.readouterr().err
    assert message.startswith("paceline: ") and message.count("\n") == 1, message
    return message
