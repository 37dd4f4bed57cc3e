"""What shares a step: one file per way."""

from paceline.core.compositions.interface import Composition
from paceline.core.compositions.mixed_chunks import MixedChunks

__all__ = ["Composition", "MixedChunks"]
