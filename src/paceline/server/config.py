"""Every setting of the HTTP server, with its default, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError

MIB = 2**20


@dataclass(frozen=True)
class ServerConfig:
    """Raises ConfigError naming the flag, its value and the allowed range."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: any free port; the one chosen is printed
    api_keys: tuple[str, ...] = ()  # empty: everyone may ask
    share_cache: bool = False  # cached KV is shared between the holders of different `api_keys`
    max_body_size: int = 16 * MIB  # bytes of a request's body
    body_timeout: float = 30.0  # seconds without a byte of a body that is not complete
    shutdown_grace: float = 30.0  # seconds running requests get to finish on a clean stop
    access_log: bool = False

    def __post_init__(self) -> None:
        if not self.host:
            raise ConfigError("--host", self.host, "a host name or an address of this machine")
        if not 0 <= self.port <= 65535:
            raise ConfigError("--port", self.port, "a port from 0 to 65535")
        if any(not key.strip() for key in self.api_keys):
            raise ConfigError("--api-key", "", "a non-empty key")
        if self.max_body_size < 1024:
            raise ConfigError("--max-body-size", self.max_body_size, "a size of at least 1KiB")
