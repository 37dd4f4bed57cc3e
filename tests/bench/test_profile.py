"""Profiles: what is measured, what is fitted, and what the command writes."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from paceline.bench.bystanders import MOST, Bystanders, Patience, Quiet
from paceline.bench.client import Reply
from paceline.bench.profile import FittedTimer, StepTimer, measure
from paceline.bench.serving_cost import Visit, Wave, fit_serving, serving_cost, together, visits_seen
from paceline.bench.step_grid import Grid
from paceline.cli.app import run
from paceline.core.plan import StepPlan, StepResult
from paceline.engine.loop_cost import loop_cost
from paceline.errors import ConfigError
from paceline.sim.latency import StepShape, shape_of
from paceline.sim.profile import Profile, fit_profile, step_times
from tests.exec.random_models import CONFIGS, random_model, save
from tests.server.conftest import LiveServer


class Clockwork:
    """An executor whose steps take as long as they say, by being busy: 20 us and 2 us a token."""

    num_blocks, block_size, vocab_size, max_model_len = 64, 16, 1000, 512

    def __init__(self) -> None:
        self.steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        end = time.perf_counter() + 20e-6 + 2e-6 * int(plan.counts.sum())
        while time.perf_counter() < end:
            pass
        return StepResult(np.zeros(int(plan.samples.sum()), np.int32))


def test_the_grid_asks_for_nothing_that_does_not_fit_and_for_every_kind_of_step() -> None:
    grid = Grid(Clockwork(), 16, 256)
    steps = grid.steps()
    shapes = [shape_of(grid.plan(rows)) for rows in steps]
    assert all(grid.fits(rows) for rows in steps)
    assert len({str(rows) for rows in steps}) == len(steps)
    assert max(shape.tokens for shape in shapes) == 256
    assert max(shape.rows for shape in shapes) == 16
    assert any(shape.rows and shape.pairs for shape in shapes)  # decodes beside a prompt
    assert any(sum(now > 1 for _, now in rows) > 2 for rows in steps)  # several prompts
    assert any(before and now > 1 for rows in steps for before, now in rows)  # a later chunk


def test_measured_steps_give_their_own_times_back() -> None:
    found = measure(Clockwork(), 8, 128, seconds=0.2)
    samples = found.samples
    assert found.spread >= 0
    fitted = fit_profile(samples)
    assert fitted.error < 0.25  # of a busy machine; by the median, so that one interruption does no harm
    tokens = np.array([sample.shape.tokens for sample in samples])
    seconds = np.array([sample.seconds for sample in samples])
    assert np.median(seconds / (20e-6 + 2e-6 * tokens)) == pytest.approx(1, rel=0.25)
    later = FittedTimer(found)
    assert later.seconds(8, 16) == pytest.approx(36e-6, rel=0.4)
    assert later.seconds(0, 0, 100) == pytest.approx(220e-6, rel=0.4)
    now = StepTimer(Clockwork(), 8, 128)
    assert now.seconds(4, 16, 60) == pytest.approx(148e-6, rel=0.4)
    with pytest.raises(ConfigError, match="--seconds"):
        measure(Clockwork(), 8, 128, seconds=0)


def test_with_little_time_every_step_is_measured_once_after_its_warm_up() -> None:
    clockwork, heard = Clockwork(), []
    found = measure(clockwork, 8, 128, seconds=1e-4, progress=heard.append)
    assert clockwork.steps == 2 * len(found.samples)
    assert [line.partition(" over ")[0] for line in heard] == ["warm-up", "round 1"]


def test_the_loop_takes_time_of_its_own() -> None:
    per_step, per_row = loop_cost(16)
    assert 1e-6 < per_step < 5e-3
    assert 0 <= per_row < 1e-3


def test_what_serving_adds_is_found_again() -> None:
    loop = (50e-6, 1e-6)
    waves = [
        Wave(rows, alone + loop[0] + loop[1] * rows + 2e-3 + 1e-4 * rows, alone)
        for rows in (1, 4, 16, 64)
        for alone in (0.01 + 1e-3 * rows, 0.012 + 1e-3 * rows)
    ]
    found = fit_serving(waves, [6.1e-3] * 3, loop)
    assert found.per_step == pytest.approx(2e-3, rel=1e-3)
    assert found.per_row == pytest.approx(1e-4, rel=1e-3)
    assert found.entry_seconds + found.exit_seconds == pytest.approx(4e-3, rel=1e-3)
    assert found.error < 1e-6
    quicker = fit_serving([Wave(1, 0.01, 0.02), Wave(8, 0.01, 0.02)], [-0.01], loop)
    assert (quicker.per_step, quicker.per_row, quicker.entry_seconds) == (0, 0, 0)


def test_what_a_request_costs_shows_in_the_streams_beside_it() -> None:
    """Decode steps of 10 ms; 3 ms in and 1 ms out; each that comes makes a step 2 ms longer, and its prompt 5."""
    ends, due = [0.01], [0.0]
    random = np.random.default_rng(3)
    while len(ends) < 4000:
        begin = ends[-1]
        if len(ends) % 5 == 0:
            due.append(begin + float(random.uniform(0, 0.01)))
        comes_in = ends[-2] < due[-1] <= begin if len(ends) > 1 else False
        ends.append(begin + 0.01 + (0.007 if comes_in else 0.0))
    tokens = np.array(ends)
    came = [(at - 0.003, float(tokens[np.searchsorted(tokens, at) + 1]) + 0.001) for at in due[1:-1]]
    seen = visits_seen(tokens + 0.001, came, 0.005)
    assert len(seen) > 0.9 * len(came)
    assert np.mean([visit.wait for visit in seen]) == pytest.approx(0.004, abs=0.0003)
    assert np.mean([visit.longer for visit in seen]) == pytest.approx(0.002, abs=1e-5)
    found = fit_serving([Wave(1, 0.012, 0.01), Wave(2, 0.012, 0.01)], [], (0.0, 0.0), [Visit(0.004, 0.002)])
    assert found.per_request == pytest.approx(0.002 - found.per_row)
    assert found.entry_seconds + found.exit_seconds == pytest.approx(0.004)
    late = visits_seen(tokens + 0.001, [(0.0, 0.011), (ends[-1] - 0.01, ends[-1] + 0.001)], 0.005)
    assert late == []


def test_a_step_is_told_from_when_all_decode_together() -> None:
    """Eight come one a step, each beside more rows than the one before, and end so."""
    rows = [min(step + 1, 8, 38 - step) for step in range(38)]  # of each step
    ends = np.cumsum([0.01 + 0.001 * count for count in rows])
    replies = [
        Reply(0.0, ends[i], ends[i + 30], output_tokens=31, gaps=list(np.diff(ends[i : i + 31]))) for i in range(8)
    ]
    assert together(replies) == pytest.approx(0.018)
    merged = replace(replies[0], gaps=[float(sum(pair)) for pair in np.array(replies[0].gaps).reshape(-1, 2)])
    assert together([merged, *replies[1:]]) == pytest.approx(0.018, rel=0.01)
    assert math.isnan(together([replies[0], Reply(0.0, 9.0, 9.5, output_tokens=2, gaps=[0.5])]))


def test_waves_go_through_a_real_server(live: LiveServer) -> None:
    said: list[str] = []
    work = serving_cost(
        live.url, lambda rows, context, prompt: 1e-3, (0.0, 0.0), 16, 1, said.append, waves_of=(1, 4), kv_tokens=400
    )
    found = asyncio.run(work)
    assert said == ["round 1 through the server: 1, 4 requests at a time"]
    assert [row[0] for row in found.waves] == [1, 4]
    assert found.per_step + found.per_row > 1e-3  # this engine's steps take longer than the millisecond claimed
    assert found.entry_seconds > 0


def test_the_command_writes_a_profile_that_the_simulator_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(random_model(CONFIGS["llama"]()), tmp_path / "model")
    path = tmp_path / "profile.json"
    status = run(
        [
            *("profile", str(model), "--output", str(path), "--seconds", "0.3", "--no-serving", "--threads", "1"),
            *("--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-model-len", "128"),
            *("--kv-cache-memory", "1MiB", "--dtype", "float32"),
        ]
    )
    said = capsys.readouterr().out
    assert status == 0, said
    assert "on shapes left out" in said
    profile = Profile.read(path)
    assert profile.kv_tokens > 128
    assert profile.facts["loop_seconds_a_step"] > 0
    assert profile.serving is None
    seconds = profile.step_times().seconds(StepShape(4, 4, 0.0, 4, 64.0))
    assert 1e-5 < seconds < 1
    assert run(["simulate", "--profile", str(path), "--num-prompts", "5", "--input-len", "8", "--output-len", "4"]) == 0


SPIN = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell what else runs")
def test_what_others_disturb_is_measured_again_as_often_as_patience_allows() -> None:
    said: list[str] = []
    patience, bystanders = Patience(1, 2.0, said.append), Bystanders()
    subprocess.run(["sh", "-c", '"$0" -c "$1" > /dev/null 2>&1 &', sys.executable, SPIN], check=True)  # nobody's child
    time.sleep(1.2)
    quiet = bystanders.seen()
    assert quiet.disturbed and quiet.others > 0.1
    assert patience.again(quiet) and not patience.again(quiet)
    assert (patience.repeated, patience.kept) == (1, 1)
    assert said == [f"{quiet}: once more"]
    assert not Patience(1, 9.0).again(replace(quiet, others=MOST / 2, stolen=0.0))
    assert not Patience(1, 9.0).again(replace(quiet, seconds=0.1))  # too short to tell


def test_a_stretch_in_which_others_worked_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.bench.profile.STRETCH", 0.0)  # every step by itself
    monkeypatch.setattr("paceline.bench.bystanders.LOOK", 0.01)
    busy = iter([0.5, 0.0, 0.5])
    monkeypatch.setattr(Bystanders, "seen", lambda _: Quiet(next(busy, 0.0), 0.0))
    clockwork, patience = Clockwork(), Patience(5, 9.0)
    found = measure(clockwork, 8, 128, seconds=1e-4, patience=patience)
    assert patience.repeated == 2
    assert clockwork.steps == 2 * len(found.samples) + 2


def test_a_requests_cost_is_in_the_step_of_its_first_token_and_survives_slowing_down() -> None:
    times = step_times([(1, 0.01), (64, 0.01)], 0.0, 0.0, 0.0, per_first=2e-3)
    decode, last_chunk = StepShape(4, 4, 0.0, 4, 64.0), StepShape(20, 5, 128.0, 4, 64.0)
    assert times.seconds(decode) == times.decode_run(4, 64, 1)[0] == 0.01
    assert times.seconds(last_chunk) == pytest.approx(0.012)
    assert times.seconds(StepShape(20, 4, 128.0, 4, 64.0)) == 0.01
    assert times.scaled(2).seconds(last_chunk) == pytest.approx(0.024)
