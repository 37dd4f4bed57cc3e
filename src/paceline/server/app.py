"""The ASGI application over an engine that is already running."""

from __future__ import annotations

from fastapi import FastAPI

from paceline import __version__
from paceline.engine.async_engine import AsyncEngine
from paceline.server import chat, completions, explain, status, tokens
from paceline.server.auth import RequireKey
from paceline.server.config import ServerConfig
from paceline.server.errors import install_error_handlers
from paceline.server.metrics import Metrics
from paceline.server.service import Service


def create_app(engine: AsyncEngine, config: ServerConfig) -> FastAPI:
    """The OpenAI API over `engine`. Whoever started the engine stops it."""
    app = FastAPI(title="Paceline", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.service = Service(engine, config, Metrics(engine.model_name))
    install_error_handlers(app)
    for part in (completions, chat, tokens, status, explain):
        app.include_router(part.router)
    app.add_middleware(RequireKey, engine=engine, config=config)
    return app
