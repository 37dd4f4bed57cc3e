"""The scheduler's state as it would be without some of the running sequences, for decision objects to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.request import RowArray

if TYPE_CHECKING:
    from paceline.core.step_builder import StepBuilder


class _Rows:
    """A batch of which only the rows in `order` are there."""

    def __init__(self, batch: Any, order: RowArray) -> None:
        self._batch = batch
        self.order = order

    def __len__(self) -> int:
        return int(self.order.size)

    @property
    def full(self) -> bool:
        return bool(self._batch.full) and len(self) == len(self._batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)


class _Room:
    """A cache with more blocks available."""

    def __init__(self, kv: Any, more: int) -> None:
        self._kv = kv
        self.available = kv.available + more

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)


class Without:
    """Looks like the builder. Only to ask an admission or an eviction what it would say; nothing may be changed."""

    def __init__(self, builder: StepBuilder, order: RowArray, more_blocks: int = 0) -> None:
        """`order`: the rows that are there; `more_blocks`: what the others would leave behind."""
        self._builder = builder
        self.batch = _Rows(builder.batch, order)
        self.kv = _Room(builder.kv, more_blocks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)
