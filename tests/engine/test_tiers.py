"""Host and disk tiers as a user turns them on."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.sizes import parse_space
from paceline.core.params import SamplingParams
from paceline.engine.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.engine.setup import build
from paceline.errors import ConfigError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = "The wheel was invented long before anybody wrote anything down, and " * 4


@pytest.mark.slow
def test_after_a_restart_a_prompt_seen_before_is_a_hit(tmp_path: Path) -> None:
    said = []
    for hits in (False, True):
        with LLM(
            model="smollm2-135m",
            num_blocks=64,
            max_model_len=512,
            disk_kv=str(tmp_path),
            disk_kv_size=1 << 28,
            swap_space=1 << 25,
            kv_load="always",
        ) as llm:
            said.append(llm.generate(PROMPT, GREEDY)[0].text)
            stats = llm.stats()
            assert (stats["prefix_hit_tokens"] >= 32) is hits
            assert stats["host_total"] > 0 < stats["disk_total"]
        assert list(tmp_path.rglob("*.kv"))
    assert said[0] == said[1]


@pytest.mark.slow
def test_headroom_and_tiers_explain_themselves_at_start() -> None:
    lines: list[str] = []
    built = build(EngineConfig(num_blocks=100, max_model_len=256, kv_headroom=0.15, num_host_blocks=10), lines.append)
    assert any("KV headroom 15%" in line and "15 of 100 blocks stay free" in line for line in lines)
    assert any("host tier 10 blocks" in line for line in lines)
    assert built.scheduler.config.watermark == 0.15


def test_flags_reach_the_scheduler() -> None:
    config = EngineConfig(victim="most-kv", preemption="threshold:64", max_preemptions=3, swap_space=1 << 30)
    row = config.schedule_by()
    assert type(row.eviction).__name__ == "MostKV" and row.eviction.how == "threshold:64"
    assert config.scheduler(8, 64, ()).max_preemptions == 3
    assert EngineConfig().scheduler(8, 64, ()).max_preemptions == 8, "as the row has it"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_headroom": 0.6}, r"--kv-headroom: 0.6 .* from 0 to 0.5"),
        ({"kv_headroom": 0.1, "watermark": 0.1}, r"--kv-headroom: 0.1 .* its other name"),
        ({"preemption": "burn"}, r"--preemption: 'burn'"),
        ({"preemption": "swap"}, r"--preemption: 'swap' .* --swap-space 4GiB"),
        ({"discipline": "tgi", "victim": "newest"}, r"--victim: 'newest' .* tgi preempts nobody"),
        ({"victim": "somebody"}, r"--victim: 'somebody' .* one of newest"),
        ({"kv_load": "maybe"}, r"--kv-load: 'maybe'"),
        ({"disk_kv_size": 1 << 30}, r"--disk-kv-size: .* without --disk-kv"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_flag(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)  # type: ignore[arg-type]


def test_swap_space_counts_in_gibibytes_unless_it_says_otherwise() -> None:
    assert [parse_space(text) for text in ("4", "0.5", "512MiB", "2G", "0")] == [4 << 30, 1 << 29, 1 << 29, 2 << 30, 0]
