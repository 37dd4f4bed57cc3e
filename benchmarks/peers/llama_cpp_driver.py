"""llama.cpp through the low-level functions of llama-cpp-python: one context, a sequence id per request.

Requests are served as its own server serves slots: a batch holds one token of every sequence that decodes, then prompt
tokens up to `n_batch`. Settings are fields of its context parameters; `slots`: most sequences at once.
"""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from typing import Any

import llama_cpp as llama
import numpy as np
import turns


class Engine:
    def __init__(self, options: Any) -> None:
        settings = {"n_ctx": 32 * 2304, "n_batch": 2048, "n_ubatch": 512, **options.settings}
        slots = settings.pop("slots", 32)
        llama.llama_backend_init()
        wanted = llama.llama_model_default_params()
        wanted.n_gpu_layers = 0
        self._model = llama.llama_load_model_from_file(options.model.encode(), wanted)
        if not self._model:
            raise SystemExit(f"{options.model} cannot be loaded")
        context = llama.llama_context_default_params()
        context.n_seq_max = slots
        context.n_threads = context.n_threads_batch = options.threads
        for name, value in settings.items():
            setattr(context, name, value)
        self._context = llama.llama_new_context_with_model(self._model, context)
        if not self._context:
            raise SystemExit("no context of that size")
        self._memory = llama.llama_get_memory(self._context)
        self._vocabulary = llama.llama_n_vocab(llama.llama_model_get_vocab(self._model))
        self._most = settings["n_batch"]
        self._batch = llama.llama_batch_init(self._most, 0, 1)
        self._free = list(range(slots))
        self._waiting: list[tuple[int, list[int], int]] = []
        self._slots: dict[int, dict[str, Any]] = {}

    def add(self, number: int, prompt: list[int], output: int) -> None:
        self._waiting.append((number, prompt, output))

    def step(self) -> list[tuple[int, int]]:
        while self._free and self._waiting:
            number, prompt, output = self._waiting.pop(0)
            self._slots[self._free.pop()] = {"number": number, "tokens": list(prompt), "done": 0, "left": output}
        rows = self._fill()
        if llama.llama_decode(self._context, self._batch) != 0:
            raise SystemExit("llama_decode failed; is the context too small?")
        found = []
        for slot, index in rows:
            logits = llama.llama_get_logits_ith(self._context, index)
            token = int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())
            state = self._slots[slot]
            state["tokens"].append(token)
            state["left"] -= 1
            found.append((state["number"], 1))
            if not state["left"]:
                llama.llama_memory_seq_rm(self._memory, slot, -1, -1)
                del self._slots[slot]
                self._free.append(slot)
        return found

    def _fill(self) -> list[tuple[int, int]]:
        """Lay the next batch out; (slot, index) of the rows whose logits are wanted."""
        at, rows = 0, []
        decoding_first = sorted(self._slots.items(), key=lambda item: len(item[1]["tokens"]) - item[1]["done"])
        for slot, state in decoding_first:
            count = min(len(state["tokens"]) - state["done"], self._most - at)
            if count <= 0:
                break
            done = state["done"]
            self._write(at, state["tokens"][done : done + count], slot, done)
            state["done"] = done + count
            at += count
            if state["done"] == len(state["tokens"]):
                self._batch.logits[at - 1] = 1
                rows.append((slot, at - 1))
        self._batch.n_tokens = at
        return rows

    def _write(self, at: int, tokens: list[int], slot: int, position: int) -> None:
        batch, count = self._batch, len(tokens)
        ctypes.memmove(ctypes.addressof(batch.token.contents) + 4 * at, (ctypes.c_int32 * count)(*tokens), 4 * count)
        places = (ctypes.c_int32 * count)(*range(position, position + count))
        ctypes.memmove(ctypes.addressof(batch.pos.contents) + 4 * at, places, 4 * count)
        for index in range(at, at + count):
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = slot
            batch.logits[index] = 0


def start(options: Any) -> tuple[Engine, dict[str, Any]]:
    about = {"engine": "llama.cpp", "version": f"llama-cpp-python {version('llama-cpp-python')}"}
    return Engine(options), {**about, "system": llama.llama_print_system_info().decode()}


if __name__ == "__main__":
    turns.serve(start)
