"""The script `paceline replay` plays: configuration and requests, checked key by key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from paceline.core.config import SchedulerConfig
from paceline.core.disciplines import ALIASES, DISCIPLINES
from paceline.core.disciplines import discipline as discipline_named
from paceline.core.orders import ORDERS
from paceline.core.params import MAX_N, SamplingParams
from paceline.core.quota_table import QUOTA_KEYS, parse_quotas
from paceline.core.quotas import Quotas
from paceline.core.request import IntArray, Request, sequence_id
from paceline.errors import ConfigError

REQUIRED = object()
SCHEDULER_KEYS = {spec.name: spec.type for spec in fields(SchedulerConfig) if spec.name != "eos_token_ids"}
DEFAULT_BLOCKS = 1024
FIRST_MADE_UP = 1 << 20  # made-up token ids are above any real vocabulary and never repeat

# A script is played in memory. What is larger is a slip, and would end in swapping or in a crash.
MOST_TOKENS = 1 << 26  # of all prompts and outputs together
MOST_STEPS = 1 << 40
MOST = {
    "num_blocks": 1 << 22,
    "num_host_blocks": 1 << 22,
    "num_disk_blocks": 1 << 22,
    "block_size": 1 << 16,
    "max_num_seqs": 1 << 16,
    "max_num_batched_tokens": 1 << 24,
    "max_model_len": 1 << 24,
    "long_prefill_token_threshold": 1 << 24,
}
MOST_CELLS = 1 << 31  # max_num_seqs x max_model_len: tokens of a full batch


@dataclass(frozen=True)
class ScriptRequest:
    """One request of a script. `prompt` [P] token ids; `output` [output_len] the tokens the fake model emits."""

    id: str
    arrival_step: int
    arrival_time: float
    prompt: IntArray
    output: IntArray
    priority: int = 0
    tenant: str = "default"
    cache_salt: str | None = None
    ttft_target: float | None = None
    tpot_target: float | None = None
    output_hint: int | None = None
    queue_timeout: float | None = None
    timeout: float | None = None
    abort_step: int | None = None
    abort_when: str = "before"
    n: int = 1  # sequences, which share the prompt; the fake model gives all of them the same tokens

    def sequence_ids(self) -> list[str]:
        return [sequence_id(self.id, index) for index in range(self.n)]

    def request(self) -> Request:
        params = SamplingParams(n=self.n, max_tokens=int(self.output.size), ignore_eos=True, temperature=0.0)
        return Request(
            id=self.id,
            prompt=self.prompt,
            params=params,
            arrival=self.arrival_time,
            priority=self.priority,
            tenant=self.tenant,
            cache_salt=self.cache_salt,
            ttft_target=self.ttft_target,
            tpot_target=self.tpot_target,
            output_hint=self.output_hint,
            output_length=int(self.output.size),
            queue_timeout=self.queue_timeout,
            timeout=self.timeout,
        )


@dataclass(frozen=True)
class Script:
    scheduler: SchedulerConfig
    discipline: str
    order: str | None
    max_steps: int
    step_time: float
    knobs: dict[str, Any] = field(default_factory=dict)  # numbers of the discipline's objects, by name
    quotas: Quotas | None = None
    requests: list[ScriptRequest] = field(default_factory=list)

    def prompt_lengths(self) -> dict[str, int]:
        """Sequence id -> tokens of its prompt."""
        return {name: int(request.prompt.size) for request in self.requests for name in request.sequence_ids()}


def read_script(text: str) -> dict[str, Any]:
    """One JSON object with `config` and `requests`, or JSON lines: the config, then one request a line."""
    try:
        script = json.loads(text)
        if isinstance(script, dict) and "requests" in script:
            return script
        return {"config": _config_line(script), "requests": []}
    except json.JSONDecodeError:
        pass
    lines: list[Any] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ConfigError(f"script line {number}", line[:60], f"JSON ({error.msg})") from None
    if not lines:
        raise ConfigError(
            "script", "", 'JSON: {"config": {...}, "requests": [...]}, or the config and one request a line'
        )
    return {"config": _config_line(lines[0]), "requests": lines[1:]}


def _config_line(line: Any) -> Any:
    return line["config"] if isinstance(line, dict) and set(line) == {"config"} else line


def parse_script(
    script: Any, discipline: str | None = None, order: str | None = None, knobs: Mapping[str, Any] | None = None
) -> Script:
    """Check a script and fill in what it leaves out. ConfigError names the key, its value and what is allowed.

    `discipline`, `order`, `knobs`: in the place of the script's, by flags.
    """
    if not isinstance(script, dict):
        raise ConfigError("script", type(script).__name__, "a JSON object with config and requests")
    for key in script:
        if key not in ("config", "requests"):
            raise ConfigError("script", key, "an object with the keys config and requests")
    config = script.get("config", {})
    if not isinstance(config, dict):
        raise ConfigError("config", config, "a JSON object")
    settings: dict[str, Any] = {"num_blocks": DEFAULT_BLOCKS}
    row_knobs: dict[str, Any] = {}
    own: dict[str, Any] = {"discipline": "paceline", "order": None, "max_steps": 100_000, "step_time": 1.0}
    own["quotas"] = None
    for key in own.keys() & config.keys():
        own[key] = config[key]
    name = discipline or own["discipline"]
    _one_of("--discipline" if discipline else "config.discipline", name, [*DISCIPLINES, *ALIASES])
    if own["order"] is not None:
        _one_of("config.order", own["order"], ORDERS)
    row = discipline_named(name, own["order"] if order is None else order)
    if knobs:
        row.with_knobs({key: value for key, value in knobs.items() if key not in SCHEDULER_KEYS})
        config = {**config, **knobs}
    known = row.knobs()
    for key, value in config.items():
        if key in own:
            continue
        if key in SCHEDULER_KEYS:
            settings[key] = _typed(f"config.{key}", value, SCHEDULER_KEYS[key])
            if key in MOST and settings[key] > MOST[key]:
                raise ConfigError(f"config.{key}", value, f"at most {MOST[key]}")
        elif key in known:
            row_knobs[key] = value
        else:
            raise ConfigError(
                "config", key, "a known key, one of " + ", ".join(sorted([*own, *SCHEDULER_KEYS, *known]))
            )
    requests = script.get("requests", [])
    if not isinstance(requests, list):
        raise ConfigError("requests", type(requests).__name__, "a list")
    with script_names():
        scheduler = row.configure(**settings)
    if scheduler.max_num_seqs * scheduler.max_model_len > MOST_CELLS:
        allowed = f"at most {MOST_CELLS // scheduler.max_model_len} with max_model_len {scheduler.max_model_len}"
        raise ConfigError("config.max_num_seqs", scheduler.max_num_seqs, allowed)
    return Script(
        scheduler=scheduler,
        discipline=name,
        order=own["order"] if order is None else order,
        max_steps=_whole("config.max_steps", own["max_steps"], 1, MOST_STEPS),
        step_time=_number("config.step_time", own["step_time"], 0.0),
        knobs=row_knobs,
        quotas=None if own["quotas"] is None else _quotas(own["quotas"]),
        requests=_requests(requests),
    )


@contextmanager
def script_names() -> Iterator[None]:
    """Settings that are refused are named as a script has them, `config.block_size`, not by their flags."""
    try:
        yield
    except ConfigError as error:
        if not error.setting.startswith("--"):
            raise
        raise ConfigError(
            _key(error.setting), error.value, _FLAG.sub(lambda found: _key(found[0]), error.allowed)
        ) from None


_FLAG = re.compile(r"--[a-z][a-z-]+")


def _key(flag: str) -> str:
    """The script's key of a flag; a flag that is none, such as --knob NAME, as it is."""
    name = flag[2:].replace("-", "_")
    return f"config.{name}" if name.isidentifier() else flag


def _quotas(value: Any) -> Quotas:
    """{"default": {...}, "tenants": {NAME: {...}}}, as in a file of quotas."""
    if not isinstance(value, dict) or set(value) - {"default", "tenants"}:
        raise ConfigError("config.quotas", value, "an object with the keys default and tenants")
    tenants = value.get("tenants", {})
    for table in (value.get("default", {}), tenants, *(tenants.values() if isinstance(tenants, dict) else ())):
        if not isinstance(table, dict):
            raise ConfigError("config.quotas", table, "made of objects")
    for table in (value.get("default", {}), *tenants.values()):
        for key in set(table) - set(QUOTA_KEYS):
            raise ConfigError("config.quotas", key, "made of keys of " + ", ".join(QUOTA_KEYS))
    return parse_quotas(value.get("default", {}), tenants, "config.quotas.")


def _requests(items: list[Any]) -> list[ScriptRequest]:
    fresh = FIRST_MADE_UP
    seen: set[str] = set()
    parsed = []
    for index, item in enumerate(items):
        where = f"requests[{index}]"
        if not isinstance(item, dict):
            raise ConfigError(where, item, "a JSON object")
        if unknown := set(item) - _REQUEST_KEYS:
            raise ConfigError(where, sorted(unknown)[0], "an object with keys of " + ", ".join(sorted(_REQUEST_KEYS)))
        request, fresh = _request(where, item, index, fresh)
        names = set(request.sequence_ids())
        if names & seen:
            raise ConfigError(f"{where}.id", request.id, "unique in the script")
        seen |= names
        parsed.append(request)
    return parsed


_REQUEST_KEYS = {
    "abort_step", "abort_when", "arrival_step", "arrival_time", "cache_salt", "id", "n",
    "output_hint", "output_len", "output_tokens", "priority", "prompt", "prompt_len", "queue_timeout", "tenant",
    "timeout", "tpot_target", "ttft_target",
}  # fmt: skip


def _request(where: str, item: dict[str, Any], index: int, fresh: int) -> tuple[ScriptRequest, int]:
    if ("prompt" in item) == ("prompt_len" in item):
        found = [key for key in ("prompt", "prompt_len") if key in item]
        allowed = "an object with just one of prompt (token ids) and prompt_len (how many)"
        raise ConfigError(f"{where} (id {item.get('id', index)!r})", " and ".join(found) or "neither", allowed)
    if "prompt" in item:
        prompt = _tokens(f"{where}.prompt", item["prompt"])
    else:
        most = MOST_TOKENS + FIRST_MADE_UP - fresh
        prompt = _made_up(fresh, _whole(f"{where}.prompt_len", item["prompt_len"], 0, most))
        fresh += prompt.size
    emitted = _tokens(f"{where}.output_tokens", item.get("output_tokens") or [])
    most = MOST_TOKENS + FIRST_MADE_UP - fresh
    length = _whole(f"{where}.output_len", item.get("output_len", emitted.size or 1), 1, most)
    output = np.concatenate([emitted[:length], _made_up(fresh, max(length - emitted.size, 0))])
    fresh += length
    abort, hint = item.get("abort_step"), item.get("output_hint")
    targets = {
        key: None if item.get(key) is None else _number(f"{where}.{key}", item[key], 0.0)
        for key in ("ttft_target", "tpot_target", "queue_timeout", "timeout")
    }
    return ScriptRequest(
        id=str(item.get("id", index)),
        arrival_step=_whole(f"{where}.arrival_step", item.get("arrival_step", 0), 0),
        arrival_time=_number(f"{where}.arrival_time", item.get("arrival_time", index), None),
        prompt=prompt,
        output=output,
        priority=_whole(f"{where}.priority", item.get("priority", 0), None),
        tenant=_typed(f"{where}.tenant", item.get("tenant", "default"), "str"),
        cache_salt=None if item.get("cache_salt") is None else _typed(f"{where}.cache_salt", item["cache_salt"], "str"),
        **targets,
        output_hint=None if hint is None else _whole(f"{where}.output_hint", hint, 1),
        abort_step=None if abort is None else _whole(f"{where}.abort_step", abort, 0),
        n=_whole(f"{where}.n", item.get("n", 1), 1, MAX_N),
        abort_when=_one_of(f"{where}.abort_when", item.get("abort_when", "before"), ("before", "mid")),
    ), fresh


def _made_up(first: int, count: int) -> IntArray:
    return np.arange(first, first + count, dtype=np.int32)


def _tokens(where: str, value: Any) -> IntArray:
    valid = isinstance(value, list) and all(type(token) is int and 0 <= token < 2**31 for token in value)
    if not valid:
        raise ConfigError(where, value, "a list of token ids from 0 to 2147483647")
    return np.array(value, np.int32)


def _whole(where: str, value: Any, low: int | None, high: int = 1 << 60) -> int:
    if type(value) is not int or (low is not None and value < low):
        raise ConfigError(where, value, "a whole number" + ("" if low is None else f" of at least {low}"))
    if value > high:
        raise ConfigError(where, value, f"at most {max(high, 0)}, so that all that is played fits in memory")
    return value


def _number(where: str, value: Any, low: float | None) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e18 or (low is not None and value < low):
        raise ConfigError(where, value, "a number" + ("" if low is None else f" of at least {low}"))
    return float(value)


def _one_of(where: str, value: Any, allowed: Any) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(where, value, "one of " + ", ".join(allowed))
    return value


def _typed(where: str, value: Any, kind: Any) -> Any:
    checks: dict[str, Callable[[], bool]] = {
        "int": lambda: type(value) is int,
        "bool": lambda: type(value) is bool,
        "float": lambda: type(value) in (int, float),
        "str": lambda: isinstance(value, str),
    }
    if not checks[kind]():
        raise ConfigError(where, value, {"int": "a whole number", "bool": "true or false"}.get(kind, f"a {kind}"))
    return float(value) if kind == "float" else value
