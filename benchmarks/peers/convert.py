"""One GGUF file in the forms that other engines read: the same numbers, rounded to bfloat16 once.

    python benchmarks/peers/convert.py --folder FOLDER [--model smollm2-135m]

writes FOLDER/bf16 (a Hugging Face directory with safetensors and tokenizer) and FOLDER/bf16.gguf and FOLDER/f16.gguf.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from paceline.engine.gguf_tokenizer import build_gguf_tokenizer
from paceline.exec.gguf_file import GGUFFile, read_gguf
from paceline.exec.gguf_weights import GGUFWeights
from paceline.exec.source import resolve


def directory(source: Path, config: dict[str, Any], target: Path) -> None:
    """A Hugging Face directory of a llama GGUF file, in bfloat16."""
    file = read_gguf(source)
    weights = GGUFWeights(file)
    tensors = {}
    for name in sorted(weights.names()):
        tensors[name] = weights.tensor(name, weights.shape(name)).to(torch.bfloat16).contiguous()
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    more = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "hidden_act": "silu"}
    kept = {name: value for name, value in config.items() if name != "rope_parameters" or value}
    (target / "config.json").write_text(json.dumps({**kept, **more}, indent=1))
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id") if name in config}
    (target / "generation_config.json").write_text(json.dumps(ends))
    build_gguf_tokenizer(file.metadata, str(source)).save(str(target / "tokenizer.json"))
    tokens = file.metadata["tokenizer.ggml.tokens"]
    names = {name.removesuffix("_id"): tokens[token] for name, token in ends.items()}
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config["max_position_embeddings"]}
    (target / "tokenizer_config.json").write_text(json.dumps({**names, **more}))


def plain_gguf(source: Path, target: Path, kind: str) -> None:
    """The file with every matrix as BF16 or F16 and everything else in float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    file = read_gguf(source)
    writer = GGUFWriter(target, file.architecture)
    _copy_metadata(writer, source)
    wanted = GGMLQuantizationType[kind]
    for name, info in file.tensors.items():
        numbers = np.asarray(file.read(name), np.float32)
        if len(info.shape) < 2:
            writer.add_tensor(name, numbers)
        elif kind == "F16":
            writer.add_tensor(name, numbers.astype(np.float16))
        else:
            writer.add_tensor(name, quantize(numbers, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_metadata(writer: Any, source: Path) -> None:
    from gguf import GGUFReader, GGUFValueType

    left_out = ("general.architecture", "general.file_type", "general.quantization_version")
    for field in GGUFReader(source).fields.values():
        if field.name.startswith("GGUF.") or field.name in left_out:
            continue
        kind = field.types[0]
        within = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=within)


def convert(model: str, folder: Path) -> dict[str, Path]:
    """All forms, made where they are not there yet: name -> path."""
    source = resolve(model)
    if source.kind != "gguf":
        raise SystemExit(f"{model}: give a .gguf file, or smollm2-135m")
    folder.mkdir(parents=True, exist_ok=True)
    forms = {"given": folder / source.path.name, "bf16": folder / "bf16"}
    if not forms["given"].exists():
        shutil.copyfile(source.path, forms["given"])
    if not (forms["bf16"] / "tokenizer_config.json").exists():
        directory(source.path, source.config, forms["bf16"])
    for kind in ("BF16", "F16"):
        forms[f"{kind.lower()}.gguf"] = target = folder / f"{kind.lower()}.gguf"
        if not target.exists():
            plain_gguf(source.path, target, kind)
    return forms


def kinds_of(file: GGUFFile) -> dict[str, int]:
    """How many tensors there are of each number format."""
    from gguf import GGMLQuantizationType

    found: dict[str, int] = {}
    for info in file.tensors.values():
        name = GGMLQuantizationType(info.kind).name
        found[name] = found.get(name, 0) + 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    for name, path in convert(options.model, options.folder).items():
        kinds = kinds_of(read_gguf(path)) if path.suffix == ".gguf" else ""
        print(f"{name}: {path} {kinds}")


if __name__ == "__main__":
    main()
