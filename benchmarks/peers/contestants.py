"""The engines that are compared, each with the settings at which it is best, as processes that take turns."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Contestant:
    """An engine with a model and settings. `environment` None: the interpreter that runs this."""

    driver: str
    environment: str | None
    form: str
    """Of the model, as convert.py names them, or `openvino`."""
    settings: Mapping[str, Any] = field(default_factory=dict)


_KV = 2 << 30
_OPENVINO = {"cache_size": 2, "max_num_seqs": 64, "max_num_batched_tokens": 2048, "enable_prefix_caching": True}
_VLLM = {"kv_gib": 2, "max_model_len": 2304, "max_num_seqs": 64, "max_num_batched_tokens": 2048}
_BF16 = {"INFERENCE_PRECISION_HINT": "bf16"}

CONTESTANTS = {
    "paceline": Contestant("paceline", None, "bf16", {"dtype": "bfloat16", "kv_cache_memory": _KV}),
    "paceline, no cache": Contestant(
        "paceline", None, "bf16", {"dtype": "bfloat16", "kv_cache_memory": _KV, "enable_prefix_caching": False}
    ),
    "paceline 8-bit KV": Contestant(
        "paceline", None, "bf16", {"dtype": "bfloat16", "kv_cache_memory": _KV, "kv_cache_dtype": "int8"}
    ),
    "paceline Q4_1": Contestant("paceline", None, "given", {"kv_cache_memory": _KV, "quantization": "keep"}),
    "vllm": Contestant("vllm", "vllm", "bf16", _VLLM),
    "openvino": Contestant("openvino", "openvino", "openvino", _OPENVINO | {"properties": _BF16}),
    "openvino Q4_1": Contestant("openvino", "openvino", "given", _OPENVINO | {"properties": _BF16}),
    "llama.cpp": Contestant("llama_cpp", "llama.cpp", "bf16.gguf"),
    "llama.cpp Q4_1": Contestant("llama_cpp", "llama.cpp", "given"),
    "transformers": Contestant(
        "transformers", "transformers", "bf16", {"num_blocks": 160, "max_batch_tokens": 2048, "page_size": 256}
    ),
}


class Driven:
    """A contestant as a process. Stopped (SIGSTOP) while others have their turn, so that no idle thread spins."""

    def __init__(self, python: Path, one: Contestant, model: Path, cores: Sequence[int], log: Path) -> None:
        command = [str(python), str(HERE / f"{one.driver}_driver.py"), "--model", str(model)]
        command += ["--threads", str(len(cores)), "--settings", json.dumps(dict(one.settings))]
        self._log = log.open("w")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            preexec_fn=lambda: _apart(cores),
            env={**os.environ, "OMP_NUM_THREADS": str(len(cores)), "TOKENIZERS_PARALLELISM": "false"},
        )
        self._name = f"{one.driver} ({log})"
        self.about: dict[str, Any] = self._answer()["ready"]
        self._stop()

    def run(self, prompts: list[list[int]], outputs: list[int]) -> dict[str, Any]:
        """The answer of its driver; see turns.py."""
        with self._turn():
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"prompts": prompts, "outputs": outputs}) + "\n")
            self._process.stdin.flush()
            answer = self._answer()
        if answer["short"]:
            raise SystemExit(f"{self._name}: requests {answer['short']} have other than the tokens asked for")
        return answer

    def close(self) -> None:
        """End it and all its processes."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        self._process.wait()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise SystemExit(f"{self._name} ended without an answer; its log says why")
        found: dict[str, Any] = json.loads(line)
        return found

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            yield
        finally:
            if self._process.returncode is None:
                self._stop()

    def _stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGSTOP)


def _apart(cores: Sequence[int]) -> None:
    """A process group of its own, to be stopped as a whole, in this session, whose priority it shares."""
    os.setpgrp()
    os.sched_setaffinity(0, cores)


def export_openvino(python: Path, source: Path, target: Path) -> None:
    """The Hugging Face directory as OpenVINO's own format, by its exporter."""
    if (target / "openvino_model.xml").exists():
        return
    print(f"exporting {source} for OpenVINO", file=sys.stderr, flush=True)
    script = (
        "import sys; from optimum.intel import OVModelForCausalLM as Model; "
        "Model.from_pretrained(sys.argv[1], export=True, compile=False, load_in_8bit=False)"
        ".save_pretrained(sys.argv[2])"
    )
    subprocess.run([str(python), "-c", script, str(source), str(target)], check=True)
