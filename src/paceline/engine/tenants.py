"""Who the tenants are: a TOML file with their keys, limits, weights, priorities and what they share."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.core.quota_table import QUOTA_KEYS, flag, parse_quotas
from paceline.core.quotas import Quotas
from paceline.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_KEYS = (*QUOTA_KEYS, "priority", "share_cache")
TENANT_KEYS = (*DEFAULT_KEYS, "keys", "weight")
HASHED = "sha256:"
EVERYBODY = "everybody"  # the cache group of all who share with everybody who does
LONGEST_NAME = 256


@dataclass(frozen=True)
class Tenants:
    """What the file says. Without one: the tenant is who the request's `user` says, and has no limits."""

    path: str | None = None
    quotas: Quotas = field(default_factory=Quotas)
    keys: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of a key in hex -> tenant
    priorities: Mapping[str, int] = field(default_factory=dict)
    default_priority: int | None = None
    groups: Mapping[str, str | None] = field(default_factory=dict)  # tenant -> those who share cached KV with it
    default_group: str | None = None

    def is_named(self, tenant: str) -> bool:
        return tenant in self.quotas.tenants

    def priority(self, tenant: str, asked: int | None) -> int:
        """The priority a request gets: the tenant's, or a later one where the request asks for it."""
        own = self.priorities.get(tenant, self.default_priority)
        if own is None:
            return asked or 0
        return own if asked is None else max(asked, own)

    def cache_group(self, tenant: str) -> str:
        """Requests share cached KV within a group: by default a tenant with itself."""
        group = self.groups.get(tenant, self.default_group)
        return f"tenant {tenant}" if group is None else f"group {group}"


def read_tenants(path: str | None) -> Tenants:
    """The tenants of a file; of none without. ConfigError names the file, the key, its value and what is allowed."""
    if path is None:
        return Tenants()
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError("--quotas", path, f"a TOML file that can be read ({reason})") from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--quotas", path, f"a TOML file ({error})") from None
    return _parse(path, tables)


def _parse(path: str, tables: dict[str, Any]) -> Tenants:
    where = f"{path}: "
    for key in set(tables) - {"default", "tenants"}:
        raise ConfigError(where.rstrip(": "), key, "made of the tables default and tenants.NAME")
    default = _table(f"{where}default", tables.get("default", {}), DEFAULT_KEYS)
    tenants = tables.get("tenants", {})
    if not isinstance(tenants, dict):
        raise ConfigError(f"{where}tenants", tenants, "tables, one per tenant: [tenants.NAME]")
    named = {name: _table(f"{where}tenants.{name}", table, TENANT_KEYS) for name, table in tenants.items()}
    priorities, groups = {}, {}
    for name, table in named.items():
        if not 0 < len(name) <= LONGEST_NAME:
            raise ConfigError(f"{where}tenants", name[:40], f"a name of 1 to {LONGEST_NAME} characters")
        priority, group = _own(f"{where}tenants.{name}", table)
        if priority is not None:
            priorities[name] = priority
        if group is not None or "share_cache" in table:
            groups[name] = group  # None: its own, whatever the default
    default_priority, default_group = _own(f"{where}default", default)
    return Tenants(
        path=path,
        quotas=parse_quotas(default, named, where),
        keys=_keys(where, named),
        priorities=priorities,
        default_priority=default_priority,
        groups=groups,
        default_group=default_group,
    )


def _table(where: str, value: Any, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(where, value, "a table")
    for key in value:
        if key not in allowed:
            raise ConfigError(where, key, "made of the keys " + ", ".join(sorted(allowed)))
    return value


def _own(where: str, table: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Priority and cache group of a table."""
    priority, share = table.get("priority"), table.get("share_cache", False)
    if priority is not None and (type(priority) is not int or not -(2**31) <= priority < 2**31):
        raise ConfigError(f"{where}.priority", priority, "a whole number of 32 bits; smaller is sooner")
    if isinstance(share, str) and share:
        return priority, share
    if type(share) is not bool:
        raise ConfigError(f"{where}.share_cache", share, "true, false or the name of a group")
    return priority, EVERYBODY if flag(f"{where}.share_cache", share) else None


def _keys(where: str, tenants: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By digest. Errors do not show keys."""
    found: dict[str, str] = {}
    for name, table in tenants.items():
        keys = table.get("keys", [])
        if not isinstance(keys, list):
            raise ConfigError(f"{where}tenants.{name}.keys", "...", 'a list of keys: ["..."]')
        for index, key in enumerate(keys):
            place = f"{where}tenants.{name}.keys[{index}]"
            if not isinstance(key, str) or not key.strip():
                empty = key if isinstance(key, str) else "..."
                raise ConfigError(place, empty, f'a non-empty text, or "{HASHED}" and a digest in hex')
            digest = key[len(HASHED) :].lower() if key.startswith(HASHED) else digest_of(key)
            if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
                raise ConfigError(place, key, f'"{HASHED}" and 64 hexadecimal digits')
            if digest in found:
                raise ConfigError(place, "a key", f"a key of one tenant only; {found[digest]} has it too")
            found[digest] = name
    return found


def digest_of(key: str) -> str:
    """How a key is kept: SHA-256 in hex."""
    return hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).hexdigest()
