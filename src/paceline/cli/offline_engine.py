"""An engine in this process that is fed token ids and stepped by hand, for `paceline bench offline`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.memory import Memory, resident_bytes, status
from paceline.bench.offline import News
from paceline.core.params import SamplingParams
from paceline.errors import RequestError

if TYPE_CHECKING:
    from paceline.engine.config import EngineConfig


class OfflineEngine:
    """See `paceline.bench.offline.Engine`. Greedy, and the end-of-sequence token does not end anything."""

    def __init__(self, config: EngineConfig, progress: Callable[[str], None] = lambda text: None) -> None:
        from paceline.engine.core_loop import EngineLoop
        from paceline.engine.setup import build

        built = build(config, progress)
        self.info = built.info
        self.vocab_size: int = built.info["vocab_size"]
        self.max_model_len: int = built.info["max_model_len"]
        self._executor = built.executor
        self._loop = EngineLoop(built.scheduler, built.executor)
        self._first = 1  # the loop's number of our request 0: it never gives one twice
        self._next = 1
        self._live = 0

    def add(self, number: int, prompt: NDArray[np.int32], output: int) -> None:
        """RequestError where it can never be served."""
        from paceline.engine import messages

        if self._live == 0:
            self._first = self._next
        name = self._first + number
        self._next = max(self._next, name + 1)
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        add = messages.Add(name, f"request-{name}", messages.as_bytes(prompt.tolist()), params, seed=name)
        for answer in self._loop.handle(add):
            if isinstance(answer, messages.Refused):
                raise RequestError(answer.message)
        self._live += 1

    def step(self) -> list[News] | None:
        """One step. RequestError where the engine gave a request up."""
        done = self._loop.step()
        if done is None:
            return None
        found = []
        for output in done.outputs:
            if output.error is not None:
                raise RequestError(output.error)
            ended = output.finish_reason is not None
            self._live -= ended
            found.append(News(output.number - self._first, len(output.tokens), ended, output.cached_tokens))
        return found

    def stats(self) -> dict[str, float]:
        return self._loop.stats()

    def close(self) -> None:
        self._loop.close()

    def memory(self) -> Memory:
        """Of this process: the weights as they are held, KV as configured and as written to."""
        executor = self._executor
        cache = executor.attention.tensors()
        weights = storages(executor.model) - storages(cache)  # a model may know where the KV are
        resident, peak = status()
        return Memory(
            resident=resident,
            peak=peak,
            weights=sum(size for _, size in weights),
            kv_configured=sum(tensor.nbytes for tensor in cache),
            kv_resident=resident_bytes((tensor.data_ptr(), tensor.nbytes) for tensor in cache),
        )


def storages(thing: Any) -> set[tuple[int, int]]:
    """(address, bytes) of the storage of every tensor and array that an object of ours holds, each once."""
    import torch

    found: set[tuple[int, int]] = set()
    seen: set[int] = set()
    left = [thing]
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            found.add((storage.data_ptr(), storage.nbytes()))
        elif isinstance(one, np.ndarray):
            whole = one
            while isinstance(whole.base, np.ndarray):
                whole = whole.base
            found.add((whole.ctypes.data, whole.nbytes))
        else:
            left += _parts(one)
    return found


def _parts(thing: Any) -> Iterator[Any]:
    if isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, (list, tuple, set)):
        yield from thing
    elif (type(thing).__module__ or "").startswith(("paceline.exec", "transformers", "torch.nn")):
        yield from getattr(thing, "__dict__", {}).values()
