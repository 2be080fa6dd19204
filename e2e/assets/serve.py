"""Serves the demo model and its adapters, read-only, with ranges and entity tags; the demo-assets image runs it.

Not part of the product: users' adapters lie on a PVC, an HTTP server or a registry of their own.
"""

from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

ASSETS = Path("/srv/assets")

app = Starlette(routes=[Mount("/", StaticFiles(directory=ASSETS))])
