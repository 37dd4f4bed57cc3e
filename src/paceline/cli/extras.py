"""Which extra of the package brings a module that is missing."""

from __future__ import annotations

from collections.abc import Sequence

_BENCH = ("aiohttp", "plotly", "scipy")
_SERVER = (
    "torch", "transformers", "tokenizers", "safetensors", "gguf", "huggingface_hub", "jinja2",
    "zmq", "msgspec", "fastapi", "uvicorn", "uvloop", "prometheus_client", "yaml", "tomli",
)  # fmt: skip
_WITHOUT_SERVER = ("simulate", "plan", "bench", "disciplines")  # commands for which the bench extra is enough


def extra_with(module: str | None) -> str | None:
    """The extra that brings `module`; None: none does, so that its absence is a bug."""
    top = (module or "").split(".")[0]
    return "bench" if top in _BENCH else "server" if top in _SERVER else None


def extra_for(arguments: Sequence[str]) -> str:
    """The extra with which the command that `arguments` name can be shown and run."""
    light = bool(arguments) and arguments[0] in _WITHOUT_SERVER
    return "bench" if light and list(arguments[:2]) != ["bench", "offline"] else "server"
