"""When a waiting sequence may start: one file per rule."""

from paceline.core.admissions.discounted_output_fits import DiscountedOutputFits
from paceline.core.admissions.interface import Admission
from paceline.core.admissions.known_tokens_fit import KnownTokensFit
from paceline.core.admissions.output_fits import OutputFits
from paceline.core.admissions.peak_fits import PeakFits
from paceline.core.admissions.prompt_fits import PromptFits
from paceline.core.admissions.whole_life import WholeLife

__all__ = ["Admission", "DiscountedOutputFits", "KnownTokensFit", "OutputFits", "PeakFits", "PromptFits", "WholeLife"]
