"""What a discipline is: data, naming one object per decision point, and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from paceline.core.admissions import Admission
from paceline.core.compositions import Composition
from paceline.core.config import SchedulerConfig
from paceline.core.displacement import Displacement
from paceline.core.evictions import VICTIMS, Eviction
from paceline.core.head_of_line import HeadOfLine
from paceline.core.knob_values import checked
from paceline.core.orders import ORDERS, Policy
from paceline.core.overload import Accept, Overload
from paceline.core.preemption import preemption
from paceline.core.queue_limits import QueueLimits
from paceline.errors import ConfigError, flag_of


@dataclass(frozen=True)
class Discipline:
    """A named way to schedule: order + admission + head-of-line + composition + eviction + overload."""

    name: str
    after: str  # the system or paper whose decisions it takes
    order: str  # a name of ORDERS
    admission: Admission
    head_of_line: HeadOfLine
    composition: Composition
    eviction: Eviction
    overload: Overload = field(default_factory=Accept)
    displacement: Displacement = field(default_factory=Displacement)
    limits: QueueLimits = field(default_factory=QueueLimits)  # of the queue, beside what `overload` refuses
    cache: str = "radix"  # "radix": token-exact hits; "chain": whole blocks, evicted as vLLM V1 does; "counted": as
    # "radix" for simulations in which no two prompts begin alike
    forks: bool = True  # the n sequences of a request wait for the first to compute the prompt, then share it
    evictions: Mapping[str, Eviction] = field(
        default_factory=lambda: MappingProxyType({})
    )  # by order, where it differs
    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # settings of SchedulerConfig
    fixed: Mapping[str, tuple[Any, str]] = field(
        default_factory=lambda: MappingProxyType({})
    )  # settings that make sense under it with one value only: the value, and why
    together: bool = False  # who is done keeps row and KV until the whole batch is; then all finish, in batch order
    empty_steps: str = ""  # when a step may be empty although somebody could start; "": never
    order_knobs: Policy | None = None  # the order with knobs of its own; None: as in the table of orders
    failure_modes: tuple[str, ...] = ()  # what is known to go wrong under it

    @property
    def policy(self) -> Policy:
        """The order with its knobs."""
        return ORDERS[self.order] if self.order_knobs is None else self.order_knobs

    def configure(self, **settings: Any) -> SchedulerConfig:
        """The row's settings, changed by those given."""
        pinned = {name: value for name, (value, _) in self.fixed.items()}
        return SchedulerConfig(**{**self.defaults, **pinned, **settings})

    def check(self, config: SchedulerConfig) -> None:
        """ConfigError for settings, or an order, that make no sense under this discipline."""
        for name, (value, why) in self.fixed.items():
            if (actual := getattr(config, name)) != value:
                raise ConfigError(flag_of(name), actual, f"{value!r} under {self.name}: {why}")
        preemption(self.eviction.how)
        for part in self._parts().values():
            if (check := getattr(part, "check", None)) is not None:
                check(config, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with plain dictionaries in the place of the read-only ones, which do not pickle."""
        values = ((spec.name, getattr(self, spec.name)) for spec in fields(self))
        return Discipline._unpickled, ({name: dict(v) if isinstance(v, MappingProxyType) else v for name, v in values},)

    @staticmethod
    def _unpickled(values: dict[str, Any]) -> Discipline:
        tables: dict[str, Any] = {n: MappingProxyType(v) if isinstance(v, dict) else v for n, v in values.items()}
        return Discipline(**tables)

    def knobs(self) -> dict[str, Any]:
        """The numbers of the row's objects, by name, with their values."""
        return {spec.name: getattr(part, spec.name) for part in self._parts().values() for spec in fields(part)}

    def with_knobs(self, values: Mapping[str, Any], where: str = "--knob ") -> Discipline:
        """The same discipline with some numbers changed. ConfigError for a name it does not have, a wrong type or a
        value out of range; it names the knob after `where`, as the user wrote it."""
        changes: dict[str, dict[str, Any]] = {}  # all of one object at once: it checks them together
        for name, value in values.items():
            owner = next((p for p, part in self._parts().items() if name in {s.name for s in fields(part)}), None)
            if owner is None:
                known = "one of " + ", ".join(self.knobs()) if self.knobs() else "and it has none"
                raise ConfigError(where.strip(), name, f"a knob of {self.name}, {known}")
            part = self._parts()[owner]
            if owner != "limits":  # which are flags of their own, and check themselves by their names
                kind = next(str(spec.type) for spec in fields(part) if spec.name == name)
                value = checked(f"{where}{name}", name, value, getattr(part, name), kind)
            changes.setdefault(owner, {})[name] = value
        parts = {}
        for owner, changed in changes.items():
            try:
                parts[owner] = replace(self._parts()[owner], **changed)
            except ConfigError as error:
                own = error.setting.partition(".")[0] in changed
                raise ConfigError(where + error.setting, error.value, error.allowed) if own else error from None
        if parts.get("order_knobs") == ORDERS[self.order]:
            parts["order_knobs"] = None
        return replace(self, **parts)

    def _parts(self) -> dict[str, Any]:
        """The dataclass objects of the row, by the field they are in."""
        points = ("admission", "head_of_line", "composition", "eviction", "overload", "displacement", "limits")
        return {**{point: getattr(self, point) for point in points}, "order_knobs": self.policy}

    def with_order(self, order: str) -> Discipline:
        """The same discipline under another queue policy."""
        if order not in ORDERS:
            raise ConfigError("--order", order, "one of " + ", ".join(sorted(ORDERS)))
        return replace(self, order=order, order_knobs=None, eviction=self.evictions.get(order, self.eviction))

    def with_eviction(self, victim: str | None = None, how: str | None = None) -> Discipline:
        """The same discipline with other victims (a name of VICTIMS), or another thing done to them (`preemption`)."""
        eviction: Any = self.eviction
        for flag, value in (("--victim", victim), ("--preemption", how)):
            if value is not None and "how" not in {spec.name for spec in fields(eviction)}:
                raise ConfigError(flag, value, f"left out: {self.name} preempts nobody so that others can grow")
        if victim is not None:
            if victim not in VICTIMS:
                raise ConfigError("--victim", victim, "one of " + ", ".join(VICTIMS))
            if type(eviction) not in map(type, VICTIMS.values()):
                raise ConfigError("--victim", victim, f"left out: who yields under {self.name} is part of how it works")
            eviction = replace(VICTIMS[victim], how=eviction.how, front=eviction.front)
        if how is not None:
            preemption(how)
            eviction = replace(eviction, how=how)
        return replace(self, eviction=eviction)


def _unpickled(values: dict[str, Any]) -> Discipline:
    tables: dict[str, Any] = {name: MappingProxyType(v) if isinstance(v, dict) else v for name, v in values.items()}
    return Discipline(**tables)
