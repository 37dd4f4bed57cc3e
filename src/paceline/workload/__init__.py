"""Traffic and how it is judged: requests, arrivals, traces, generators, metrics; load tests and simulation share it.

Standard library and numpy only. Nothing here reads a clock, and every random number comes from a seed that is given.
"""

from paceline.workload.requests import TimedRequest, Workload, WorkloadError

__all__ = ["TimedRequest", "Workload", "WorkloadError"]
