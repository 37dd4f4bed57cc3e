"""Known pitfalls of serving, detected from what is measured anyway and said aloud."""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

logger = logging.getLogger(__name__)

WINDOW = 60.0  # seconds that are judged together
AGAIN = 600.0  # seconds until the same is said again
ENOUGH = 20  # requests in a window below which nothing is said of them
SHORT, LONG = 100, 500  # prompt tokens
SHARE = 0.1  # of short and of long prompts that make a mixture
PREFIX = 256  # tokens; prompts that begin with the same ones share "a long prefix"
PREFIXES = 4096  # different ones remembered
LONG_WAIT = 10.0  # seconds in the queue, at the 99th percentile
FAIR_ORDERS = frozenset({"vtc", "dlpm", "hrrn", "sjf", "srtf", "mlfq", "edf"})


class Pitfalls:
    """Watches one server. `arrived` and `ended` are O(1) a request, `look` is called every few seconds.

    Attributes:
        counts: by name, in how many windows it was found.
        said: by name, the latest words.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = logger.warning
    ) -> None:
        self._clock, self._say = clock, say
        self._info: Mapping[str, Any] = {}
        self.counts: Counter[str] = Counter()
        self.said: dict[str, str] = {}
        self._spoken: dict[str, float] = {}
        self._prefixes: OrderedDict[int, None] = OrderedDict()
        self._base: dict[str, float] = {}
        self._start()

    def _start(self) -> None:
        self._began = self._clock()
        self._lengths: list[int] = []
        self._waits: list[float] = []
        self._shared = self._long_enough = 0
        self._queued = False

    def serves(self, info: Mapping[str, Any]) -> None:
        """How requests are scheduled, as the engine said when it was ready."""
        self._info = info

    def arrived(self, prompt: Sequence[int]) -> None:
        """A request came, with these token ids."""
        self._lengths.append(len(prompt))
        if self._info.get("enable_prefix_caching", True) or len(prompt) < PREFIX:
            return
        self._long_enough += 1
        key = hash(tuple(prompt[:PREFIX]))
        if key in self._prefixes:
            self._shared += 1
            self._prefixes.move_to_end(key)
        else:
            self._prefixes[key] = None
            if len(self._prefixes) > PREFIXES:
                self._prefixes.popitem(last=False)

    def ended(self, queue_seconds: float) -> None:
        """A request is over that had waited so long to be started."""
        self._waits.append(queue_seconds)

    def look(self, stats: Mapping[str, Any]) -> list[str]:
        """Judge the window, once it is over. Returns the names of what was found in it."""
        self._queued = self._queued or bool(stats.get("waiting"))
        if self._clock() - self._began < WINDOW:
            return []
        found = {name: words for name, words in self._judge(stats) if words}
        self._start()
        self._base = {name: value for name, value in stats.items() if isinstance(value, (int, float))}
        now = self._clock()
        for name, words in found.items():
            self.counts[name] += 1
            self.said[name] = words
            if now - self._spoken.get(name, -AGAIN) >= AGAIN:
                self._spoken[name] = now
                self._say(f"pitfall {name}: {words}")
        return list(found)

    def _judge(self, stats: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [
            ("mixed_lengths", self._mixed_lengths()),
            ("prefix_cache_off", self._prefix_cache_off()),
            ("thrashing", self._thrashing(stats)),
            ("long_wait", self._long_wait()),
        ]

    def _mixed_lengths(self) -> str:
        lengths, info = self._lengths, self._info
        if len(lengths) < ENOUGH or not self._queued or info.get("order") in FAIR_ORDERS:
            return ""
        short = sum(length < SHORT for length in lengths) / len(lengths)
        long = sum(length > LONG for length in lengths) / len(lengths)
        if min(short, long) < SHARE:
            return ""
        return (
            f"{short:.0%} of the prompts are short and {long:.0%} long, and order {info.get('order')} is not "
            "fair between them: short ones wait for long ones; try --order hrrn, or --optimize fairness"
        )

    def _prefix_cache_off(self) -> str:
        if self._long_enough < ENOUGH or self._shared < self._long_enough / 2:
            return ""
        return (
            f"{self._shared} of {self._long_enough} long prompts begin with {PREFIX} tokens seen before, and the "
            "prefix cache is off: serve with --enable-prefix-caching"
        )

    def _thrashing(self, stats: Mapping[str, Any]) -> str:
        preempted, ended = self._since("preemptions", stats), self._since("finished", stats)
        swapped = self._since("swapped_out_blocks", stats)
        again = self._since("recomputed_tokens", stats)
        if preempted < ENOUGH / 2 or preempted < ended / 5:
            return ""
        return (
            f"{preempted:.0f} preemptions for {ended:.0f} requests that finished ({swapped:.0f} blocks swapped out, "
            f"{again:.0f} tokens computed again): the headroom is too small; keep 10 to 20 % of the KV free "
            "(--watermark 0.15), lower --max-num-seqs, or give it more KV memory"
        )

    def _long_wait(self) -> str:
        if len(self._waits) < ENOUGH:
            return ""
        worst = sorted(self._waits)[min(int(0.99 * len(self._waits)), len(self._waits) - 1)]
        if worst < LONG_WAIT:
            return ""
        return (
            f"the 99th percentile of the wait to be started is {worst:.1f} s, whatever the throughput says: limit the "
            "queue (--max-queue-wait), or serve with more replicas"
        )

    def _since(self, name: str, stats: Mapping[str, Any]) -> float:
        """What a total has grown by in this window; an engine that was started anew counts from nothing."""
        now, base = float(stats.get(name, 0)), self._base.get(name, 0.0)
        return now - base if now >= base else now
