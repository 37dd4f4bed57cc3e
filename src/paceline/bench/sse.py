"""Server-sent events out of a byte stream, however the network cut it."""

from __future__ import annotations

DONE = b"[DONE]"


class Events:
    """Feed it bytes as they come; it gives back the data of each event that is complete."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of the events that `data` completes. Comments and other fields are passed over."""
        buffer = self._rest + data if self._rest else data
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n")
        *whole, self._rest = buffer.split(b"\n\n")
        return [found for found in map(_data, whole) if found is not None]

    def close(self) -> list[bytes]:
        """What the stream ended with, where its last event has no blank line after it."""
        rest, self._rest = self._rest.strip(), b""
        found = _data(rest) if rest else None
        return [] if found is None else [found]


def _data(event: bytes) -> bytes | None:
    if b"\n" not in event:
        return event[5:].strip() if event.startswith(b"data:") else None
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None
