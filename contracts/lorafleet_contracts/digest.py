"""Digests of an adapter and of a base model. Called by the engine's loader and `lorafleet digest`.

A digest is the SHA-256 over the canonical list of the files that count: for each, sorted by name, the line
`<sha256 hex>  <name>\\n`. Only files of the top folder count; others neither count nor load.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

CHUNK_BYTES = 1 << 20
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_INDEX = "adapter_model.safetensors.index.json"
MODEL_CONFIG = "config.json"
MODEL_WEIGHTS = "model.safetensors"
MODEL_INDEX = "model.safetensors.index.json"
CHAT_TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
MAX_INDEX_BYTES = 16 << 20


class IncompleteFolderError(ValueError):
    """The folder lacks a file that an adapter must have, or names one outside itself."""


def canonical_digest(files: Mapping[str, str]) -> str:
    """The digest over name -> SHA-256 hex."""
    lines = "".join(f"{sha}  {name}\n" for name, sha in sorted(files.items()))
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def weight_files(index: bytes) -> list[str]:
    """The shards that a safetensors index names. Raises IncompleteFolderError for any other name."""
    try:
        names = sorted(set(json.loads(index)["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IncompleteFolderError("the safetensors index has no readable weight_map") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise IncompleteFolderError(
                f"the safetensors index names {name!r}, which is no plain .safetensors file name"
            )
    return names


def adapter_files(folder: Path) -> list[str]:
    """Names of the files that an adapter consists of. Raises IncompleteFolderError with what is missing."""
    if not (folder / ADAPTER_CONFIG).is_file():
        raise IncompleteFolderError(f"{ADAPTER_CONFIG} is missing")
    names = [ADAPTER_CONFIG, *_weights(folder, ADAPTER_WEIGHTS, ADAPTER_INDEX)]
    return names + [name for name in (CHAT_TEMPLATE,) if (folder / name).is_file()]


def base_files(folder: Path) -> list[str]:
    """Names of the files that a base model consists of. Raises IncompleteFolderError with what is missing."""
    if not (folder / MODEL_CONFIG).is_file():
        raise IncompleteFolderError(f"{MODEL_CONFIG} is missing")
    names = [MODEL_CONFIG, *_weights(folder, MODEL_WEIGHTS, MODEL_INDEX)]
    return names + [name for name in (*TOKENIZER_FILES, CHAT_TEMPLATE) if (folder / name).is_file()]


def file_digest(path: Path) -> str:
    """SHA-256 of one file in hex, read in chunks."""
    sha = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            sha.update(chunk)
    return sha.hexdigest()


def folder_digest(folder: Path, names: Iterable[str]) -> str:
    """The digest of these files of one folder."""
    return canonical_digest({name: file_digest(folder / name) for name in names})


def _weights(folder: Path, single: str, index: str) -> list[str]:
    if (folder / single).is_file():
        return [single]
    if not (folder / index).is_file():
        raise IncompleteFolderError(f"neither {single} nor {index} is there (only safetensors are read, never pickles)")
    if (folder / index).stat().st_size > MAX_INDEX_BYTES:
        raise IncompleteFolderError(f"{index} is larger than {MAX_INDEX_BYTES} bytes")
    return [index, *weight_files((folder / index).read_bytes())]
