"""`paceline replay`: every decision of a script, line by line."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.core.replay import STALL_STEPS, drawn, main, replay, tabulated
from paceline.core.replay_script import parse_script, read_script
from paceline.errors import ConfigError

VECTORS = sorted((Path(__file__).parent / "data" / "replay").glob("*.json"))
KEYS = {
    "step", "scheduled", "new", "resumed", "cached", "preempted", "swapped_in", "swapped_out", "finished", "aborted",
    "refused", "expired", "running", "waiting", "why", "free_blocks", "free_blocks_end",
}  # fmt: skip
SMALL: dict[str, Any] = {
    "config": {"block_size": 4, "num_blocks": 16, "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 40},
    "requests": [{"id": "a", "prompt": [1, 2, 3], "output_len": 2}, {"id": "b", "prompt_len": 3, "arrival_step": 1}],
}


def changed(config: dict[str, Any] | None = None, request: dict[str, Any] | None = None) -> dict[str, Any]:
    first, *others = SMALL["requests"]
    return {"config": {**SMALL["config"], **(config or {})}, "requests": [{**first, **(request or {})}, *others]}


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", VECTORS, ids=[path.stem for path in VECTORS])
def test_the_lines_are_those_of_the_vector(path: Path) -> None:
    vector = json.loads(path.read_text(encoding="utf-8"))
    assert list(replay(vector["script"], blocks=True)) == vector["lines"]


def test_there_are_vectors() -> None:
    assert len(VECTORS) >= 4


def test_every_line_has_every_key_and_the_last_is_the_summary() -> None:
    *lines, last = replay(SMALL)
    assert all(set(line) == KEYS for line in lines)
    assert list(last) == ["summary"] and last["summary"]["steps"] == len(lines)
    assert last["summary"]["finished"] == 2 and "stalled" not in last["summary"]


def test_blocks_and_timing_are_shown_when_asked_for() -> None:
    line = next(replay(SMALL, blocks=True, timing=True))
    assert set(line) == KEYS | {"blocks", "us"}
    assert line["blocks"] == {"a": [0]} and len(line["us"]) == 2 and min(line["us"]) >= 0


def test_the_discipline_asked_for_goes_before_that_of_the_script() -> None:
    script = changed({"discipline": "vllm", "order": "priority"})
    assert list(replay(script))[-1]["summary"]["discipline"] == "vllm"
    summary = list(replay(script, "paceline"))[-1]["summary"]
    assert (summary["discipline"], summary["order"]) == ("paceline", "priority")


def test_made_up_prompts_and_outputs_never_share_a_cached_block() -> None:
    requests = [{"prompt_len": 17, "output_len": 4, "arrival_step": index} for index in range(6)]
    script = {"config": {"block_size": 4, "num_blocks": 128, "max_model_len": 32}, "requests": requests}
    assert list(replay(script))[-1]["summary"]["cache_hit_tokens"] == 0


def test_requests_without_an_id_are_named_by_their_index() -> None:
    script = {"config": SMALL["config"], "requests": [{"prompt_len": 2}, {"prompt_len": 3}]}
    assert next(replay(script))["new"] == ["0", "1"]


def test_missing_output_tokens_are_made_up() -> None:
    script = changed(request={"output_tokens": [7], "output_len": 6})
    assert list(replay(script))[-1]["summary"]["generated_tokens"] == 7


def test_steps_up_to_a_late_arrival_are_skipped() -> None:
    script = {"config": SMALL["config"], "requests": [{"id": "late", "prompt_len": 2, "arrival_step": 500}]}
    assert [line["step"] for line in replay(script) if "step" in line] == [500]


def test_max_steps_ends_a_replay() -> None:
    *lines, last = replay(changed({"max_steps": 1}))
    assert len(lines) == 1 and last["summary"]["steps"] == 1 and last["summary"]["finished"] == 0


def test_an_abort_before_a_step_keeps_the_request_out_of_it() -> None:
    lines = list(replay(changed(request={"output_len": 9, "abort_step": 1})))
    assert lines[1]["aborted"] == ["a"] and lines[1]["running"] == ["b"]


def test_an_abort_in_mid_step_wastes_its_token() -> None:
    lines = list(replay(changed(request={"output_len": 9, "abort_step": 1, "abort_when": "mid"})))
    assert lines[1]["aborted"] == ["a"] and ["a", 1] in lines[1]["scheduled"] and lines[1]["finished"] == ["b"]


def test_a_script_without_requests_is_only_a_summary() -> None:
    assert [list(line) for line in replay({"config": {}, "requests": []})] == [["summary"]]


# -- scripts that make no sense ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (changed({"nosuch": 1}), "config: 'nosuch' .* a known key, one of .*block_size"),
        (changed({"block_size": "4"}), "config.block_size: '4' .* a whole number"),
        (changed({"block_size": True}), "config.block_size: True"),
        (changed({"block_size": 0}), "config.block_size: 0"),
        (changed({"watermark": "much"}), "config.watermark: 'much'"),
        (changed({"enable_prefix_caching": 1}), "config.enable_prefix_caching: 1 .* true or false"),
        (changed({"discipline": "nosuch"}), "config.discipline: 'nosuch' .* paceline"),
        (changed({"order": "nosuch"}), "config.order: 'nosuch' .* fcfs"),
        (changed({"max_steps": 0}), "config.max_steps: 0"),
        (changed({"step_time": -1}), "config.step_time: -1"),
        (changed(request={"nosuch": 1}), r"requests\[0\]: 'nosuch'"),
        (changed(request={"prompt": "text"}), r"requests\[0\].prompt: 'text' .* a list of token ids"),
        (changed(request={"prompt": [1, -2]}), r"requests\[0\].prompt"),
        (changed(request={"prompt": [2**31]}), r"requests\[0\].prompt"),
        (
            changed(request={"prompt_len": 3}),
            r"requests\[0\] .*: '(prompt and prompt_len|neither)' .* just one of prompt",
        ),
        (changed(request={"output_len": 0}), r"requests\[0\].output_len: 0 .* at least 1"),
        (changed(request={"output_len": 1.5}), r"requests\[0\].output_len: 1.5"),
        (changed(request={"output_tokens": ["x"]}), r"requests\[0\].output_tokens"),
        (changed(request={"arrival_step": -1}), r"requests\[0\].arrival_step: -1"),
        (changed(request={"arrival_time": "soon"}), r"requests\[0\].arrival_time: 'soon'"),
        (changed(request={"priority": 1.5}), r"requests\[0\].priority: 1.5"),
        (changed(request={"tenant": 5}), r"requests\[0\].tenant: 5"),
        (changed(request={"cache_salt": 5}), r"requests\[0\].cache_salt: 5"),
        (changed(request={"abort_step": -1}), r"requests\[0\].abort_step: -1"),
        (changed(request={"abort_when": "later"}), r"requests\[0\].abort_when: 'later' .* before, mid"),
        (changed(request={"id": "b"}), r"requests\[1\].id: 'b' .* unique"),
        ({"config": {}, "requests": {}}, "requests: 'dict' .* a list"),
        ({"config": [], "requests": []}, "config: "),
        ({"config": {}, "requests": [5]}, r"requests\[0\]: 5"),
        ({"config": {}, "requests": [], "more": 1}, "script: 'more'"),
        ([], "script: 'list'"),
    ],
)
def test_a_script_that_makes_no_sense_is_an_error_that_names_the_key(script: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_script(script)


def test_json_lines_are_the_config_then_one_request_a_line() -> None:
    lines = [SMALL["config"], *SMALL["requests"]]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    assert read_script(text) == SMALL
    wrapped = "\n".join(json.dumps(line) for line in [{"config": SMALL["config"]}, *SMALL["requests"]])
    assert read_script(wrapped) == SMALL
    assert list(replay(read_script(text))) == list(replay(read_script(json.dumps(SMALL, indent=2))))


def test_a_broken_line_is_named() -> None:
    with pytest.raises(ConfigError, match="script line 2"):
        read_script(json.dumps(SMALL["config"]) + "\n{oops\n")
    with pytest.raises(ConfigError, match="script"):
        read_script("\n\n")


def test_what_the_script_or_the_flags_say_is_named_as_it_was_said() -> None:
    for script, flags, part in (
        (changed(request={"prompt_len": 3}), {}, r"requests\[0\] \(id 'a'\): 'prompt and prompt_len' .* just one of"),
        (
            changed({"max_num_batched_tokens": 3}),
            {},
            r"config\.max_num_batched_tokens: 3 .* config\.max_num_seqs \(4\)",
        ),
        (changed({"growth": -1}), {}, r"config\.growth: -1 .* at least 0, or null"),
        (SMALL, {"knobs": {"growth": -1}}, "--knob growth: -1"),
        (SMALL, {"knobs": {"age": 1}}, "--knob: 'age' .* a knob of paceline"),
        (SMALL, {"order": "nosuch"}, "--order: 'nosuch'"),
    ):
        with pytest.raises(ConfigError, match=part):
            list(replay(script, **flags))


def test_order_and_knobs_of_flags_go_before_the_scripts() -> None:
    knobs = {"age": 2.0, "max_num_seqs": 1}
    *lines, last = replay(changed({"order": "edf", "max_num_seqs": 4}), order="priority", knobs=knobs)
    assert last["summary"]["order"] == "priority"
    assert all(len(line["running"]) <= 1 for line in lines)


def test_the_sequences_of_a_request_share_its_prompt() -> None:
    *lines, last = replay(changed(request={"prompt": [1, 2, 3, 4, 5], "n": 3}))
    assert last["summary"]["finished"] == 4 and last["summary"]["cache_hit_tokens"] >= 8
    assert {"a", "a#1", "a#2"} <= {name for line in lines for name in line["finished"]}
    assert "fork" in lines[0]["why"]["a#1"]
    drawn(changed(request={"n": 2}), [""])
    assert tabulated(changed(request={"n": 2}), [""])
    twice = {
        "config": SMALL["config"],
        "requests": [{"id": "a", "prompt_len": 2, "n": 2}, {"id": "a#1", "prompt_len": 2}],
    }
    with pytest.raises(ConfigError, match="unique"):
        parse_script(twice)


# -- the command ------------------------------------------------------------------------------------------------------


def played(script: Any, *flags: str, text: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paceline.core.replay", "-", *flags],
        input=json.dumps(script) if text else script,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_prints_what_the_function_returns() -> None:
    ran = played(SMALL)
    assert ran.returncode == 0 and not ran.stderr
    assert [json.loads(line) for line in ran.stdout.splitlines()] == list(replay(SMALL))


def test_the_command_reads_a_file_and_its_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in [SMALL["config"], *SMALL["requests"]]), encoding="utf-8")
    assert main([str(path), "--discipline", "vllm", "--blocks", "--timing"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "blocks" in lines[0] and "us" in lines[0] and lines[-1]["summary"]["discipline"] == "vllm"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{oops", "script line 1"),
        ("", "script"),
        ('{"config": {"nosuch": 1}, "requests": []}', "nosuch"),
        ('{"config": {}, "requests": [{"prompt_len": 1, "output_len": -1}]}', "output_len"),
        ("[1, 2]", "config"),
        ("5", "config"),
    ],
)
def test_a_bad_script_is_one_line_and_exit_status_2(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["-"]) == 2
    shown = capsys.readouterr()
    assert not shown.out and shown.err.startswith("paceline replay: ") and message in shown.err
    assert shown.err.count("\n") == 1


def test_a_missing_file_and_an_unknown_discipline_are_exit_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nosuch.json")]) == 2
    assert "nosuch.json" in capsys.readouterr().err
    path = tmp_path / "script.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    assert main([str(path), "--discipline", "nosuch"]) == 2
    assert "nosuch" in capsys.readouterr().err
    path.write_bytes(b"\xff\xfe\x00")
    assert main([str(path)]) == 2


def test_of_several_disciplines_the_one_that_cannot_play_a_script_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script.json"
    short = {"config": {"max_num_batched_tokens": 16, "max_num_seqs": 4, "max_model_len": 64}, "requests": []}
    path.write_text(json.dumps(short), encoding="utf-8")
    assert main([str(path), "--discipline", "paceline,static", "--table"]) == 2
    assert "config.max_num_batched_tokens under static: 16" in capsys.readouterr().err


def test_a_stall_is_seen_and_is_exit_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str], stuck: None) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    assert main([str(path)]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == STALL_STEPS + 1 and lines[-1]["summary"]["stalled"] is True
    assert all(line["waiting"] and not line["scheduled"] for line in lines[:-1])


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row under which nobody is ever admitted."""
    from dataclasses import dataclass, replace

    from paceline.core import disciplines

    @dataclass(frozen=True)
    class Never:
        def refuse(self, *_: Any) -> str:
            return "never"

        def most_blocks(self, *_: Any) -> int:
            return 1

    row = replace(disciplines.DISCIPLINES["paceline"], admission=Never())
    monkeypatch.setitem(disciplines.DISCIPLINES, "paceline", row)


def test_the_command_needs_neither_torch_nor_a_second() -> None:
    """Seconds of processor, not of the clock: other work on the machine does not count."""
    program = (
        "import sys, json, resource, paceline.core.replay as r\n"
        "r.main(['-'])\n"
        "heavy = {'torch', 'transformers', 'msgspec', 'zmq', 'fastapi', 'scipy', 'pandas'} & set(sys.modules)\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(json.dumps({'heavy': sorted(heavy), 'seconds': used.ru_utime + used.ru_stime}))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(SMALL),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["heavy"] == [] and found["seconds"] < 1.0
