"""Judges and packs verified adapter files for one base model. Called by jobs.py; the maths is adapters/.

Decides only what a pool decides: whether the adapter was made for this base, and whether it touches allowed modules.
"""

from pathlib import Path
from typing import Literal

from lorafleet_contracts.admin import ProblemCode
from lorafleet_contracts.digest import CHAT_TEMPLATE
from lorafleet_engine.adapters.pack import check_values, pack_adapter
from lorafleet_engine.adapters.peft import inspect_adapter
from lorafleet_engine.errors import BrokenAdapterError, JobError, UnsupportedAdapterError
from lorafleet_engine.loader.messages import AdapterFacts
from lorafleet_engine.messages import BlobRef
from lorafleet_engine.model.config import read_config

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
UNDECLARED_PREFIXES = ("/", ".", "~")


class Packer:
    """Immutable. `base_names`: the pool's name of the base and its aliases."""

    def __init__(
        self,
        base_dir: Path,
        dtype: Literal["float32", "bfloat16"],
        base_names: tuple[str, ...],
        target_modules: tuple[str, ...],
        tensor_parallel: int = 1,
    ) -> None:
        self._shape = read_config(base_dir).shape
        self._dtype: Literal["float32", "bfloat16"] = dtype
        self._base_names = base_names
        self._target_modules = target_modules
        self._shards = tensor_parallel

    def inspect(self, folder: Path, digest: str) -> AdapterFacts:
        """What the files hold. Raises JobError with every reason why they cannot be served."""
        try:
            found = inspect_adapter(folder, self._shape, DTYPE_BYTES[self._dtype], self._shards)
        except (BrokenAdapterError, UnsupportedAdapterError) as error:
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, str(error), error.reasons) from error
        self._check_modules(found.target_modules)
        warnings = (*found.warnings, *self._check_base(found.base))
        sizes = found.bytes, found.device_bytes
        return AdapterFacts(digest, *sizes, found.rank, found.target_modules, found.base, warnings)

    def check_values(self, folder: Path) -> tuple[str, ...]:
        """Read every number once, for the warnings that they give. Raises JobError for those that cannot be served."""
        try:
            return check_values(folder, self._shape, self._dtype)
        except (BrokenAdapterError, UnsupportedAdapterError) as error:
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, str(error), error.reasons) from error

    def pack(self, folder: Path, path: Path, dtype: Literal["float32", "bfloat16"] | None = None) -> BlobRef:
        """Write the packed bytes, in the engine's dtype or another, to `path`. Raises JobError."""
        try:
            return pack_adapter(folder, self._shape, dtype or self._dtype).write(path)
        except (BrokenAdapterError, UnsupportedAdapterError) as error:
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, str(error), error.reasons) from error

    def chat_template(self, folder: Path) -> str | None:
        """The adapter's own chat template, if it brings one. Raises JobError."""
        path = folder / CHAT_TEMPLATE
        try:
            return path.read_text() if path.is_file() else None
        except UnicodeDecodeError as error:
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, f"{CHAT_TEMPLATE} is not UTF-8 text") from error

    def _check_modules(self, touched: tuple[str, ...]) -> None:
        if foreign := [module for module in touched if module not in self._target_modules]:
            reason = f"the adapter touches {', '.join(foreign)}, the pool allows {', '.join(self._target_modules)}"
            raise JobError(ProblemCode.UNSUPPORTED_ADAPTER, reason, (reason,))

    def _check_base(self, declared: str) -> tuple[str, ...]:
        """A path or nothing is undeclared; any other name must be one of the pool's."""
        if not declared or declared.startswith(UNDECLARED_PREFIXES):
            return (f"BaseUndeclared: adapter_config.json names no base model ({declared!r})",)
        if declared not in self._base_names:
            raise JobError(
                ProblemCode.BASE_MISMATCH,
                f"the adapter was trained on {declared!r}, this pool serves {', '.join(self._base_names)}",
            )
        return ()
