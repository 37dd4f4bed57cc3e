"""Settings from a file, and knobs as people type them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from paceline.cli.sizes import parse_memory, parse_size, parse_space
from paceline.core.knob_values import parse_knobs
from paceline.errors import ConfigError

SIZES = ("kv_cache_memory", "max_body_size", "disk_kv_size")
OTHER_NAMES = {"api_key": "api_keys", "knob": "knobs"}
LARGEST_FILE = 2**20  # bytes

__all__ = ["parse_knobs", "read_settings"]


def read_settings(path: str, kinds: Iterable[type[Any]], extra: Mapping[str, type[Any]]) -> dict[str, Any]:
    """What a YAML or TOML file sets, by field of the dataclasses `kinds` or name of `extra`, as flags without dashes.

    ConfigError naming the file, the setting and what it may be.
    """
    table = _read(Path(path))
    hints = {spec.name: get_type_hints(kind)[spec.name] for kind in kinds for spec in fields(kind)}
    hints.update(extra)
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = str(key).removeprefix("--").replace("-", "_")
        name = OTHER_NAMES.get(name, name)
        if name not in hints:
            raise ConfigError(f"--config {path}", key, "a setting there is, one of " + ", ".join(sorted(hints)))
        found[name] = _checked(f"{path}: {key}", name, value, hints[name])
    return found


def _read(path: Path) -> dict[Any, Any]:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise ConfigError("--config", str(path), f"a file of at most {LARGEST_FILE} bytes")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--config", str(path), f"a text file that can be read ({error})") from None
    if path.suffix == ".toml":
        table = _toml(path, text)
    elif path.suffix in (".yaml", ".yml", ".json"):
        table = _yaml(path, text)
    else:
        raise ConfigError("--config", str(path), "a file named *.yaml, *.yml, *.json or *.toml")
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ConfigError("--config", str(path), "a table of settings: NAME: VALUE on each line")
    return table


def _toml(path: Path, text: str) -> Any:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib  # type: ignore[no-redef]
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("--config", str(path), f"TOML ({error})") from None


def _yaml(path: Path, text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):  # plain YAML takes the last of two equal keys
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            if twice := next((key for at, key in enumerate(keys) if key in keys[:at]), None):
                raise ConfigError(f"--config {path}", twice, "set once")
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)  # a safe loader
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError("--config", str(path), "YAML (" + " ".join(str(error).split()) + ")") from None


def _checked(where: str, name: str, value: Any, hint: Any) -> Any:
    """The value as the field has it."""
    if name in SIZES and type(value) in (str, int):
        try:
            return parse_size(value) if name == "max_body_size" else parse_memory(value)
        except ValueError as error:
            raise ConfigError(where, value, f"a size ({error})") from None
    if name == "swap_space" and isinstance(value, str | int | float):
        try:
            return parse_space(str(value))
        except ValueError as error:
            raise ConfigError(where, value, f"a size ({error})") from None
    if name == "knobs":
        if not isinstance(value, dict):
            raise ConfigError(where, value, "a table of knobs: NAME: VALUE each")
        return {str(knob).replace("-", "_"): tuple(v) if isinstance(v, list) else v for knob, v in value.items()}
    if name == "api_keys":
        keys = [value] if isinstance(value, str) else value
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ConfigError(where, "...", "a list of keys, all of them text")
        return tuple(keys)
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if float in allowed and type(value) is int:
        return float(value)
    if value is None or type(value) not in allowed:
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        raise ConfigError(where, value, " or ".join(words[kind] for kind in allowed if kind in words))
    return value
