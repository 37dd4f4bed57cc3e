"""Why a server could not be reached, in the operating system's words."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

import aiohttp


def reason(error: BaseException) -> str:
    """Such as "Connection refused", or "Name or service not known"."""
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    cause = getattr(cause, "certificate_error", cause)
    if isinstance(cause, ssl.SSLError):
        return f"TLS: {getattr(cause, 'reason', None) or cause}".replace("_", " ").lower()
    if isinstance(cause, socket.gaierror):  # whose numbers are its own
        return str(cause.strerror or cause)
    if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
        return os.strerror(cause.errno)
    return str(cause) or type(cause).__name__


def timed_out(error: BaseException) -> bool:
    """Nothing came, instead of a refusal."""
    return isinstance(error, asyncio.TimeoutError | TimeoutError)
