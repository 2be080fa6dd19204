"""The quickstart example as the demo and the e2e tests use it: applied as it is, keys created by the CLI."""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from e2e.fleet import DEMO, QUICKSTART, Fleet

ACME, GLOBEX = "acme", "globex"


@dataclass(frozen=True, slots=True)
class Keys:
    """API keys of the quickstart's two tenants; never printed."""

    acme: str = field(repr=False)
    globex: str = field(repr=False)


def apply_quickstart(fleet: Fleet) -> None:
    """`kubectl apply -k examples/quickstart`, with the image's registry replaced where REGISTRY names one."""
    registry = os.environ.get("REGISTRY")
    if not registry:
        fleet.kubectl.run("apply", "-k", str(QUICKSTART))
        return
    with tempfile.TemporaryDirectory(dir=QUICKSTART.parent) as overlay:
        image = "lorafleet/demo-assets"
        (Path(overlay) / "kustomization.yaml").write_text(
            f"resources: [../{QUICKSTART.name}]\nimages: [{{name: localhost/{image}, newName: {registry}/{image}}}]\n"
        )
        fleet.kubectl.run("apply", "-k", overlay)


def create_keys(fleet: Fleet) -> Keys:
    """Give both tenants a new key."""
    return Keys(fleet.create_key(DEMO, ACME), fleet.create_key(DEMO, GLOBEX))
