"""Settings that contradict each other are told by both their names, before a model is looked for."""

from __future__ import annotations

import pytest

from paceline.cli.app import run
from paceline.engine.config import EngineConfig
from paceline.engine.contradictions import TABLE
from paceline.errors import ConfigError
from paceline.exec import config as executor


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.setting}-{row.other}")
def test_both_are_named(row) -> None:  # type: ignore[no-untyped-def]
    for value in row.values:
        for other in row.others:
            EngineConfig(model="/nowhere", **{row.setting: value})
            EngineConfig(model="/nowhere", **{row.other: other})
            with pytest.raises(ConfigError) as caught:
                EngineConfig(model="/nowhere", **{row.setting: value, row.other: other})
            flags = ["--" + name.replace("_", "-") for name in (row.setting, row.other)]
            assert all(flag in str(caught.value) for flag in flags) and repr(value) in str(caught.value)


def test_the_table_knows_the_executors_values() -> None:
    known = {
        "quantization": executor.QUANTIZATIONS,
        "kv_cache_dtype": executor.KV_CACHE_DTYPES,
        "kernels": executor.KERNELS,
        "attention": executor.ATTENTIONS,
        "backend": executor.BACKENDS,
        "device": executor.DEVICES,
    }
    for row in TABLE:
        assert set(row.values) <= set(known[row.setting]) and set(row.others) <= set(known[row.other])


@pytest.mark.parametrize("command", ["serve", "bench offline", "profile"])
def test_nothing_is_loaded_first(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"profile": ["--kv-cache-memory", "5"]}.get(command, ["--kv-cache-dtype", "int8", "--kernels", "off"])
    assert run([*command.split(), *wrong]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and wrong[0] in said.err
