"""Engines of ours that the benchmark starts itself, so that it can sweep what is fixed at their start. Used by
session.py. Needs the `engine` extra in the processes it starts, not here."""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lorafleet_contracts.digest import IncompleteFolderError, adapter_files, folder_digest
from lorafleet_contracts.names import BASE_MODEL, HEADER_GATEWAY, HEADER_MODEL, HEADER_TENANT, version_key
from lorafleet_engine.bench.endpoint.control import Port
from lorafleet_engine.bench.endpoint.models import Catalogue, Model
from lorafleet_engine.bench.server_child import TOKEN, ServerError, ServerPlan, running_server

SENDER = {HEADER_TENANT: "bench/serve", HEADER_GATEWAY: "bench"}
CACHES = 3
"""Bytes of each cache over those of the adapters' files, so that nothing is evicted but what is asked to be."""
LEAST_CACHE = 256 << 20
LEAST_WINDOW = 2048


class OwnError(Exception):
    """The engine cannot be started over these folders; the message says why."""


@dataclass(frozen=True, slots=True)
class Started:
    """Addresses of an engine that is Ready."""

    url: str
    key: str
    state: Port
    admin: Port


@dataclass(frozen=True, slots=True)
class OwnEngines:
    """What every engine of the run is started with."""

    model: Path
    catalogue: Catalogue
    settings: dict[str, str]

    @staticmethod
    def over(parsed: argparse.Namespace) -> "OwnEngines":
        """Read the folders. Raises OwnError."""
        model = parsed.own.resolve()
        if not (model / "config.json").is_file():
            raise OwnError(f"{model} holds no base model: config.json is missing")
        folders = [each for each in sorted(parsed.own_adapters.resolve().iterdir()) if each.is_dir()]
        adapters = tuple(_adapter(number, folder) for number, folder in enumerate(folders[: parsed.adapters]))
        size = sum(file.stat().st_size for folder in folders for file in folder.iterdir() if file.is_file())
        cache = str(max(CACHES * size, LEAST_CACHE))
        settings = {
            "DEVICE": parsed.device,
            "DTYPE": "bfloat16" if parsed.device == "cuda" else "float32",
            "MAX_MODEL_LEN": str(max(LEAST_WINDOW, 2 * (parsed.prompt + parsed.answer))),
            "HOST_CACHE_BYTES": cache,
            "DISK_CACHE_BYTES": cache,
            "PREFIX_CACHE": "off",
            "VOLUMES_DIR": str(model.parent.parent),
            "BASE_URI": f"pvc://{model.parent.name}/{model.name}",
        }
        if parsed.memory_bytes is not None:
            settings["MEMORY_BYTES"] = str(parsed.memory_bytes)
        base = Model(model.name, None, {HEADER_MODEL: BASE_MODEL, **SENDER})
        return OwnEngines(model, Catalogue(base, adapters), settings)

    @contextlib.contextmanager
    def started(self, **settings: str) -> Iterator[Started]:
        """One that is Ready, with these settings (LORAFLEET_* without the prefix) over the usual ones."""
        with tempfile.TemporaryDirectory(prefix="lorafleet-bench-") as work:
            plan = ServerPlan(self.model.parent.parent, self.model.name, Path(work), self.settings | settings)
            try:
                with running_server(plan) as server:
                    ports = [f"http://127.0.0.1:{port}" for port in (server.port, server.state, server.admin)]
                    yield Started(ports[0], TOKEN, Port(ports[1], TOKEN), Port(ports[2], TOKEN))
            except ServerError as error:
                raise OwnError(
                    f"{error}; its log is above (an engine needs `pip install 'lorafleet[engine]'`)"
                ) from error


def _adapter(number: int, folder: Path) -> Model:
    try:
        version = version_key(f"a{number:04d}", folder_digest(folder, adapter_files(folder)))
        rank = int(json.loads((folder / "adapter_config.json").read_text())["r"])
    except (IncompleteFolderError, OSError, ValueError, LookupError, TypeError) as error:
        raise OwnError(f"{folder} is no PEFT adapter: {error}") from error
    return Model(folder.name, rank, {HEADER_MODEL: version, **SENDER}, version, f"file://{folder}")
