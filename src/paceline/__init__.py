"""Paceline: an LLM serving engine whose heart is its scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncEngine", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from paceline.core.params import SamplingParams
    from paceline.engine.async_engine import AsyncEngine
    from paceline.engine.llm import LLM

_HOMES = {
    "LLM": "paceline.engine.llm",
    "AsyncEngine": "paceline.engine.async_engine",
    "SamplingParams": "paceline.core.params",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that `import paceline` costs nothing and needs only numpy."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
