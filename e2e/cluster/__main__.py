"""The command line of the local cluster: `python3 -m e2e.cluster COMMAND`, called by the Makefile.

Progress goes to standard error, answers (paths) to standard output; a failure is one message and status 1.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster.apiserver import start_apiserver, stop_apiserver
from e2e.cluster.binaries import NEEDED, PROGRAMS, build_missing, locate
from e2e.cluster.errors import ClusterError
from e2e.cluster.lifecycle import bring_up, take_down
from e2e.cluster.metrics import add_metrics
from e2e.cluster.outages import cut_nodes, cut_pods, lose_node, mend_nodes, mend_pods, return_node
from e2e.cluster.paths import find_cache
from e2e.cluster.places import SECOND
from e2e.images.delivery import make_images, name_images
from e2e.images.recipes import RECIPES


def build_parser() -> argparse.ArgumentParser:
    """Every command with its arguments."""
    parser = argparse.ArgumentParser(prog="python3 -m e2e.cluster", description=__doc__)
    parser.set_defaults(handle=dispatch)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="give a Ready two-node cluster (or verify the one of KUBECONFIG)")
    commands.add_parser("down", help="remove it; keeps binaries, images and assets")
    commands.add_parser("kubeconfig", help="print where the local cluster's kubeconfig lies")
    binaries = commands.add_parser("binaries", help="build the programs that the cache lacks")
    binaries.add_argument("names", nargs="*", choices=[*PROGRAMS, []], help="which (default: what every cluster needs)")
    images = commands.add_parser("images", help="build the images that changed and bring them into the cluster")
    names = [recipe.name for recipe in RECIPES]
    images.add_argument("names", nargs="*", choices=[*names, []], help="which (default: all)")
    metrics = commands.add_parser("metrics", help="add metrics-server to the running cluster")
    metrics.set_defaults(handle=measure)
    commands.add_parser("image-names", help="print the images of the present tree as JSON: short name to full name")
    which = commands.add_parser("which", help="print where a built program lies")
    which.add_argument("name", choices=PROGRAMS)
    node = commands.add_parser(
        "node", help="let a node fail: lose or return NAME; cut or mend the link between the two"
    )
    node.add_argument("fault", choices=("lose", "return", "cut", "mend"))
    node.add_argument("name", nargs="?", default=SECOND.name, help=f"which (default: {SECOND.name})")
    node.set_defaults(handle=inflict)
    pods = commands.add_parser("pods", help="cut or mend the network between two pods, given by their addresses")
    pods.add_argument("fault", choices=("cut", "mend"))
    pods.add_argument("addresses", nargs=2)
    pods.set_defaults(handle=inflict)
    apiserver = commands.add_parser("apiserver", help="etcd and kube-apiserver alone, on free ports")
    apiserver.add_argument("action", choices=("start", "stop"))
    apiserver.add_argument("--state", type=Path, required=True, help="folder for its files")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run one command; 0 when it succeeded."""
    chosen = build_parser().parse_args(arguments)
    try:
        handle: Callable[[argparse.Namespace], int] = chosen.handle
        return handle(chosen)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def dispatch(chosen: argparse.Namespace) -> int:
    """Call what the parsed command names."""
    cache = find_cache()
    match chosen.command:
        case "up":
            print(bring_up(cache))
        case "down":
            take_down(cache)
        case "kubeconfig":
            print(cache.kubeconfig)
        case "binaries":
            build_missing(cache, chosen.names or NEEDED)
        case "images":
            make_images(cache, chosen.names or [recipe.name for recipe in RECIPES])
        case "image-names":
            print(json.dumps(name_images(cache), indent=1))
        case "which":
            print(locate(cache, chosen.name))
        case "apiserver" if chosen.action == "start":
            print(start_apiserver(cache, chosen.state.resolve()).kubeconfig)
        case "apiserver":
            stop_apiserver(chosen.state.resolve())
    return 0


def measure(_: argparse.Namespace) -> int:
    """Do what the `metrics` command says."""
    add_metrics(find_cache())
    return 0


def inflict(chosen: argparse.Namespace) -> int:
    """Do what the `node` and `pods` commands name."""
    cache = find_cache()
    match (chosen.command, chosen.fault):
        case ("node", "lose"):
            lose_node(cache, chosen.name)
        case ("node", "return"):
            return_node(cache, chosen.name)
        case ("node", "cut"):
            cut_nodes(cache)
        case ("node", _):
            mend_nodes(cache)
        case (_, "cut"):
            cut_pods(cache, *chosen.addresses)
        case _:
            mend_pods(cache, *chosen.addresses)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
