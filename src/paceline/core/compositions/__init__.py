"""What shares a step: one file per way."""

from paceline.core.compositions.alternating_turns import AlternatingTurns
from paceline.core.compositions.closed_batch import ClosedBatch
from paceline.core.compositions.contexts_first import ContextsFirst
from paceline.core.compositions.dynamic_batch import DynamicBatch
from paceline.core.compositions.interface import Composition
from paceline.core.compositions.mixed_chunks import MixedChunks
from paceline.core.compositions.oldest_first import OldestFirst
from paceline.core.compositions.prefill_or_decode import PrefillOrDecode
from paceline.core.compositions.reselect import Reselect
from paceline.core.compositions.separate_prefill import SeparatePrefill
from paceline.core.compositions.skip_starved import SkipStarved
from paceline.core.compositions.slots import Slots
from paceline.core.compositions.split_fuse import SplitFuse
from paceline.core.compositions.stall_free import StallFree

__all__ = [
    "AlternatingTurns",
    "ClosedBatch",
    "Composition",
    "ContextsFirst",
    "DynamicBatch",
    "MixedChunks",
    "OldestFirst",
    "PrefillOrDecode",
    "Reselect",
    "SeparatePrefill",
    "SkipStarved",
    "Slots",
    "SplitFuse",
    "StallFree",
]
