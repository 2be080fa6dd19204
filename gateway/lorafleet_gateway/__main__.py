"""`python -m lorafleet_gateway [bootstrap|drain]`: the picker, the init step and the preStop hook of a gateway pod."""

import argparse
import asyncio
import os
import sys

import aiohttp
import uvloop

from lorafleet_gateway.settings import Settings, read_settings
from lorafleet_gateway.shell.drain import drain
from lorafleet_gateway.shell.envoy_files import write_bootstrap
from lorafleet_gateway.shell.service import serve
from lorafleet_kube.errors import KubeError
from lorafleet_kube.logs import set_up_logs


def main() -> None:
    """Run one command; the settings come from the environment."""
    parser = argparse.ArgumentParser(prog="lorafleet_gateway", description=__doc__)
    parser.add_argument("command", nargs="?", choices=("serve", "bootstrap", "drain"), default="serve")
    command = parser.parse_args().command
    try:
        settings = read_settings(os.environ)
    except (OSError, ValueError) as error:
        sys.exit(f"lorafleet_gateway {command}: the settings are wrong: {error}")
    set_up_logs("gateway", settings.log_level)
    try:
        _run(command, settings)
    except (KubeError, aiohttp.ClientError, OSError) as error:
        sys.exit(f"lorafleet_gateway {command}: {error}")


def _run(command: str, settings: Settings) -> None:
    match command:
        case "bootstrap":
            print(write_bootstrap(settings))
        case "drain":
            asyncio.run(drain(settings.envoy_admin_port, settings.drain_seconds))
        case _:
            uvloop.run(serve(settings))


if __name__ == "__main__":
    main()
