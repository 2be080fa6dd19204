"""The quickstart example as the demo and the e2e tests use it: applied as it is, keys created by the CLI."""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from e2e.cluster.paths import find_cache
from e2e.fleet import DEMO, QUICKSTART, Fleet
from e2e.images.delivery import name_images

ACME, GLOBEX = "acme", "globex"


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys of the quickstart's two tenants; never printed."""

    acme: str = field(repr=False)
    globex: str = field(repr=False)


def apply_quickstart(fleet: Fleet) -> None:
    """`kubectl apply -k examples/quickstart`, with the image's name replaced where REGISTRY has it."""
    if not os.environ.get("REGISTRY"):
        fleet.kubectl.run("apply", "-k", str(QUICKSTART))
        return
    name, tag = name_images(find_cache())["demo-assets"].rsplit(":", 1)
    image = {"name": "localhost/lorafleet/demo-assets", "newName": name, "newTag": tag}
    with tempfile.TemporaryDirectory(dir=QUICKSTART.parent) as overlay:
        kustomization = {"resources": [f"../{QUICKSTART.name}"], "images": [image]}
        (Path(overlay) / "kustomization.yaml").write_text(json.dumps(kustomization))
        fleet.kubectl.run("apply", "-k", overlay)


def create_keys(fleet: Fleet) -> Keys:
    """Give both tenants a new key."""
    return Keys(fleet.create_key(DEMO, ACME), fleet.create_key(DEMO, GLOBEX))
