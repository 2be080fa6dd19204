"""Root of the `lorafleet` command. Sub-commands come by entry points, so that none needs another's extra.

Each entry point of the group `lorafleet.commands` is a `register(subparsers)` function; a command sets
`run=callable(arguments) -> exit code` as its parser's default.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from lorafleet_contracts.digest import IncompleteFolderError, adapter_files, folder_digest

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

COMMANDS = "lorafleet.commands"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and run one command; returns its exit code (2: usage). As `kubectl-lorafleet` it is kubectl's plugin."""
    words = sys.argv[1:] if arguments is None else arguments
    plugin = Path(sys.argv[0]).name.startswith("kubectl-")
    program = "kubectl lorafleet" if plugin else "lorafleet"
    parser = argparse.ArgumentParser(prog=program, description="Serve many LoRA fine-tunes of one base model.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    points = sorted(entry_points(group=COMMANDS), key=lambda each: each.name)
    # A command does not wait for what only others import.
    for point in [each for each in points if words[:1] == [each.name]] or points:
        _register(point, subparsers)
    parsed = parser.parse_args(words)
    return int(parsed.run(parsed))


def register_digest(subparsers: "Subparsers") -> None:
    """Add `lorafleet digest DIR`."""
    parser = subparsers.add_parser("digest", help="print the digest of an adapter's folder, for spec.source.digest")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.set_defaults(run=_digest)


def _register(point: EntryPoint, subparsers: "Subparsers") -> None:
    try:
        register = point.load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lorafleet_"):
            raise
        missing = f"not installed: needs {error.name} (pip install 'lorafleet[{point.module.split('.')[0][10:]}]')"
        parser = subparsers.add_parser(point.name, help=missing, add_help=False)
        parser.set_defaults(run=lambda _: _fail(f"`lorafleet {point.name}` is {missing}"))
        return
    register(subparsers)


def _digest(parsed: argparse.Namespace) -> int:
    try:
        print(folder_digest(parsed.folder, adapter_files(parsed.folder)))
    except (IncompleteFolderError, OSError) as error:
        return _fail(f"{parsed.folder}: {error}")
    return 0


def _fail(message: str) -> int:
    print(f"lorafleet: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
