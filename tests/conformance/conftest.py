"""The engine that the suite runs against: one started here over a tiny model, or one that runs elsewhere.

Elsewhere: LORAFLEET_CONFORMANCE_{SERVING,STATE,ADMIN} are base URLs, LORAFLEET_CONFORMANCE_TOKENS a folder with the
files serving, state and admin, LORAFLEET_CONFORMANCE_ADAPTERS at least four source URIs that the engine can reach,
comma-separated, LORAFLEET_CONFORMANCE_WINDOW its maxModelLen.
Here: LORAFLEET_CONFORMANCE_DEVICE (cpu, cuda) chooses the device.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorafleet_contracts.admin import PortName
from tests.conformance.client import Client, LoadedAdapter
from tests.support.engine_process import Engine, running_engine, wait_ready
from tests.support.tiny_model import AdapterRecipe, make_adapter, make_model

PREFIX = "LORAFLEET_CONFORMANCE_"
RECIPES = (
    AdapterRecipe(1, rank=4),
    AdapterRecipe(2, rank=16, modules=("self_attn.q_proj", "self_attn.v_proj"), scale=0.5),
    AdapterRecipe(3, rank=5, config={"use_rslora": True}),
    AdapterRecipe(4, rank=8, config={"lora_alpha": 16}),
)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A ready engine."""
    if f"{PREFIX}SERVING" in os.environ:
        tokens = Path(os.environ[f"{PREFIX}TOKENS"])
        urls = [os.environ[f"{PREFIX}{name}"] for name in ("SERVING", "STATE", "ADMIN")]
        yield Engine(*urls, {name: (tokens / name.value).read_text().split()[0] for name in PortName})
        return
    folder = tmp_path_factory.mktemp("engine")
    make_model(folder / "volumes" / "models" / "tiny")
    with running_engine(folder, "pvc://models/tiny") as started:
        wait_ready(started)
        yield started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of all waits for the engine."""
    for item in items:
        if item.path.parent == Path(__file__).parent and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def client(engine: Engine) -> Iterator[Client]:
    """Speaks the three ports as the gateway and the operator do."""
    with Client(engine) as opened:
        yield opened


@pytest.fixture(scope="session")
def sources(engine: Engine) -> list[str]:
    """URIs of at least four adapters."""
    given = os.environ.get(f"{PREFIX}ADAPTERS")
    if given:
        return given.split(",")
    assert engine.folder is not None
    for recipe in RECIPES:
        make_adapter(engine.folder / "volumes" / "models" / f"adapter-{recipe.seed}", recipe)
    return [f"pvc://models/adapter-{recipe.seed}" for recipe in RECIPES]


@pytest.fixture(scope="session")
def adapters(client: Client, sources: list[str]) -> list[LoadedAdapter]:
    """The adapters, loaded."""
    return [client.bring(f"uid-{number}", uri) for number, uri in enumerate(sources)]


@pytest.fixture(scope="session")
def local(engine: Engine) -> Engine:
    """The engine, when it runs here: its files and processes can be reached."""
    if engine.process is None:
        pytest.skip("needs an engine that runs here")
    return engine
