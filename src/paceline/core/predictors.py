"""How many tokens will a sequence generate? For orders that look at length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from paceline.core.request import FinishReason, Sequence
from paceline.errors import ConfigError


class Predictor(Protocol):
    """One object per scheduler."""

    def predict(self, sequence: Sequence) -> float:
        """Tokens it is expected to generate in all, at least 1 and at most what it may."""
        ...

    def finished(self, sequence: Sequence) -> None:
        """It ended; `sequence.tokens` has what it generated."""
        ...


class MaxTokens:
    """As many as it may."""

    def predict(self, sequence: Sequence) -> float:
        return float(max(sequence.max_length - sequence.prompt_length, 1))

    def finished(self, sequence: Sequence) -> None:
        return None


class Hint(MaxTokens):
    """As many as the client said (`Request.output_hint`); without a hint, as many as it may."""

    def predict(self, sequence: Sequence) -> float:
        hint = sequence.request.output_hint
        most = super().predict(sequence)
        return most if hint is None else min(max(float(hint), 1.0), most)


class Oracle(MaxTokens):
    """As many as there will be, which only a simulation knows (`Request.output_length`); else as a hint."""

    def __init__(self) -> None:
        self._hint = Hint()

    def predict(self, sequence: Sequence) -> float:
        length = sequence.request.output_length
        return self._hint.predict(sequence) if length is None else float(max(length, 1))


class TenantMean(MaxTokens):
    """A moving average of what the tenant's requests generated before; before the first, as many as it may."""

    SHARE = 0.2  # of the newest in the average

    def __init__(self) -> None:
        self._mean: dict[int, float] = {}  # by index of the tenant

    def predict(self, sequence: Sequence) -> float:
        most = super().predict(sequence)
        return min(max(self._mean.get(sequence.tenant, most), 1.0), most)

    def finished(self, sequence: Sequence) -> None:
        if sequence.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return  # what a client cut off says nothing about the length
        generated = float(sequence.tokens.size - sequence.prompt_length)
        mean = self._mean.get(sequence.tenant, generated)
        self._mean[sequence.tenant] = mean + self.SHARE * (generated - mean)


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "max-tokens": MaxTokens,
    "hint": Hint,
    "tenant-mean": TenantMean,
    "oracle": Oracle,
}


def predictor(name: str) -> Predictor:
    """A fresh predictor of that name. ConfigError for a name not in the table."""
    if name not in PREDICTORS:
        raise ConfigError("predictor", name, "one of " + ", ".join(PREDICTORS))
    return PREDICTORS[name]()
