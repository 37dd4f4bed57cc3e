"""What a load test raises. Apart from what needs a client, so that reports can be written without one."""

from __future__ import annotations

from paceline.errors import PacelineError


class BenchError(PacelineError):
    """A load test cannot be made, or its figures cannot be kept. The message names what is at fault, and the mend."""
