"""How the server and the engine process write their logs: alike."""

from __future__ import annotations

import logging


def log_to_standard_error() -> None:
    """Warnings and worse of everyone, with time, level and name, unless the program has set up logging already."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
