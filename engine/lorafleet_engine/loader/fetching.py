"""Fetches the files of an adapter or a base model out of a source folder, bounded and hashed on the way.

Called by loader/jobs.py. Fetches exactly the files that count for the digest (contracts.digest), plus the base
model's generation_config.json; never lists a folder.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.digest import (
    ADAPTER_CONFIG,
    ADAPTER_INDEX,
    ADAPTER_WEIGHTS,
    CHAT_TEMPLATE,
    MAX_INDEX_BYTES,
    MODEL_CONFIG,
    MODEL_INDEX,
    MODEL_WEIGHTS,
    TOKENIZER_FILES,
    IncompleteFolderError,
    adapter_files,
    base_files,
    canonical_digest,
    weight_files,
)
from lorafleet_engine.errors import JobError
from lorafleet_engine.loader.local_folder import LocalFolder
from lorafleet_engine.loader.sources import Folder

SMALL_FILE_BYTES = 4 << 20
TOKENIZER_BYTES = 256 << 20
GENERATION_CONFIG = "generation_config.json"
TOKENIZER = TOKENIZER_FILES[0]


def fetch_adapter(source: Folder, target: Path, limit: int) -> str:
    """Fetch an adapter's files (weights: at most `limit` bytes) and return its digest. Raises JobError."""
    shas = _fetch_small(source, target, (ADAPTER_CONFIG, CHAT_TEMPLATE))
    shas |= _fetch_weights(source, target, (ADAPTER_WEIGHTS, ADAPTER_INDEX), limit)
    return _digest(adapter_files, target, shas)


def fetch_base(source: Folder, target: Path, limit: int) -> str:
    """Fetch a base model's files (weights: at most `limit` bytes) and return its digest. Raises JobError."""
    shas = _fetch_small(source, target, (MODEL_CONFIG, CHAT_TEMPLATE, GENERATION_CONFIG, *TOKENIZER_FILES[1:]))
    sha = source.fetch(TOKENIZER, target / TOKENIZER, TOKENIZER_BYTES)
    if sha is None:
        raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the base model has no {TOKENIZER} ({source.absence})")
    shas[TOKENIZER] = sha
    shas |= _fetch_weights(source, target, (MODEL_WEIGHTS, MODEL_INDEX), limit)
    return _digest(base_files, target, shas)


def check_base_in_place(source: LocalFolder) -> list[str]:
    """Names of the base model's files on a volume, each checked to lie inside it. Raises JobError."""
    try:
        names = base_files(source.path)
    except IncompleteFolderError as error:
        raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, str(error)) from error
    for name in (*names, TOKENIZER):
        if not source.check(name):
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the base model has no {name}")
    source.check(GENERATION_CONFIG)
    return names


def digest_in_place(source: LocalFolder, names: list[str]) -> str:
    """The digest of files on a volume."""
    return canonical_digest({name: source.digest(name) or "" for name in names})


def _fetch_small(source: Folder, target: Path, names: tuple[str, ...]) -> dict[str, str]:
    shas = {}
    for name in names:
        sha = source.fetch(name, target / name, SMALL_FILE_BYTES)
        if sha is not None:
            shas[name] = sha
        elif name == names[0]:
            raise JobError(ProblemCode.SOURCE_UNREACHABLE, f"the source has no {name} ({source.absence})")
    return shas


def _fetch_weights(source: Folder, target: Path, names: tuple[str, str], limit: int) -> dict[str, str]:
    single, index = names
    sha = source.fetch(single, target / single, limit)
    if sha is not None:
        return {single: sha}
    sha = source.fetch(index, target / index, MAX_INDEX_BYTES)
    if sha is None:
        raise JobError(
            ProblemCode.UNSUPPORTED_ADAPTER,
            f"the source has neither {single} nor {index} (only safetensors are read, never pickles)",
        )
    shas = {index: sha}
    try:
        shards = weight_files((target / index).read_bytes())
    except IncompleteFolderError as error:
        raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, str(error)) from error
    for shard in shards:
        sha = source.fetch(shard, target / shard, limit)
        if sha is None:
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, f"the source has no {shard}, which {index} names")
        limit -= (target / shard).stat().st_size
        shas[shard] = sha
    return shas


def _digest(list_files: Callable[[Path], list[str]], folder: Path, shas: Mapping[str, str]) -> str:
    try:
        return canonical_digest({name: shas[name] for name in list_files(folder)})
    except IncompleteFolderError as error:
        raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, str(error)) from error
