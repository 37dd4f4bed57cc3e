"""Errors a user can act on. Each says what is wrong, where, and the mend."""

from __future__ import annotations

from collections.abc import Iterable


class PacelineError(Exception):
    """Base of every error Paceline raises on purpose."""


class ConfigError(PacelineError):
    """A setting is missing or out of range. Names the setting as the user typed it.

    Where `allowed` ends in "one of A, B, C", a value that is close to one of them is asked about. The command line
    prints `str(error)` on one line and exits with status 2.
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        names = allowed.partition("one of ")[2].replace("; ", ", ").split(", ")
        super().__init__(f"{setting}: {value!r} is not valid; it must be {allowed}{did_you_mean(value, names)}")
        self.setting = setting
        self.value = value
        self.allowed = allowed


class ModelError(PacelineError):
    """A model cannot be loaded: missing, corrupt, unsupported or too large. The message names the file and the mend."""


class RequestError(PacelineError):
    """A request cannot be served as asked.

    Attributes:
        param: the field at fault, as in the OpenAI API, or None.
        code: machine-readable code, e.g. "context_length_exceeded".
        status: the HTTP status this maps to (400, 401, 404, 413, 429, ...).
        retry_after: seconds after which the same request may well be served, where that is known.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.retry_after = retry_after


class EngineDeadError(PacelineError):
    """The engine process ended and could not be brought back."""


def flag_of(setting: str) -> str:
    """A setting as a user types it: "max_num_seqs" -> "--max-num-seqs"."""
    return "--" + setting.replace("_", "-")


def did_you_mean(value: object, names: Iterable[str]) -> str:
    """The end of a sentence that refuses `value`: asks about the name that is closest to it; "" where none is close."""
    if not isinstance(value, str) or not value:
        return ""
    from difflib import get_close_matches

    plain = {name.lower().replace("-", "_"): name for name in names}
    close = get_close_matches(value.lower().replace("-", "_"), plain, n=1, cutoff=0.7)
    return f"; did you mean {plain[close[0]]!r}?" if close else ""
