"""When a waiting sequence may start: one file per rule."""

from paceline.core.admissions.interface import Admission
from paceline.core.admissions.known_tokens_fit import KnownTokensFit

__all__ = ["Admission", "KnownTokensFit"]
