"""A request's stay, as the entrance keeps it."""

from __future__ import annotations

import enum

from paceline.core.request import Sequence


class Stage(enum.Enum):
    PARKED = "parked"  # over its tenant's quota: outside the order
    QUEUED = "queued"  # in the order, and none of its sequences has started
    STARTED = "started"
    ENDED = "ended"


class Visit:
    """One request, from the door to its end."""

    __slots__ = ("borrows", "counted", "limits", "prompt", "request_id", "sequences", "stage", "tenant")

    def __init__(self, tenant: int, sequences: list[Sequence]) -> None:
        self.request_id = sequences[0].request.id
        self.tenant = tenant  # index of the tenant
        self.sequences = sequences  # those that wait to be put into the order while PARKED, those put there after
        self.prompt = sequences[0].prompt_length
        self.stage = Stage.QUEUED
        self.borrows = False  # it is over the quota, and was let in because nobody else waits
        self.counted = False  # it counts in its tenant's account: promised, then paid
        self.limits = 0  # time limits it has
