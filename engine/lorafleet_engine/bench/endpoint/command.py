"""The arguments of `lorafleet bench serve`. Registered by bench/command.py; imports nothing that needs an extra."""

import argparse
import sys
from pathlib import Path

DEFAULT_SKEWS = (1.0, 0.1)


def add_serve(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `serve` to the commands of `lorafleet bench`."""
    parser = commands.add_parser("serve", help="measure any OpenAI-compatible endpoint that serves adapters")
    _endpoint(parser.add_argument_group("endpoint"))
    _load(parser.add_argument_group("load"))
    _control(parser.add_argument_group("an engine of ours"))
    parser.add_argument("--out", type=Path, default=Path("bench-serve.json"), help="figures; a page of HTML beside it")
    parser.add_argument("--quiet", action="store_true", help="no bar and no lines on standard error")
    parser.set_defaults(run=_run)


def _endpoint(group: argparse._ArgumentGroup) -> None:
    where = group.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="the endpoint, without /v1")
    where.add_argument("--own", type=Path, metavar="MODEL", help="start engines of ours over this folder (sweeps caps)")
    group.add_argument("--key", default="", help="bearer key (default: the variable OPENAI_API_KEY)")
    group.add_argument(
        "--models", type=Path, metavar="FILE", help="JSON: adapters, most popular first (default: listed)"
    )
    group.add_argument("--base", metavar="NAME", help="the base model, where several are listed")
    group.add_argument("--adapters", type=_positive, metavar="N", help="use the first N only")
    group.add_argument("--api", choices=("completions", "chat"), default="completions")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="answers of equal length (vLLM's field)",
    )
    group.add_argument("--token-ids", type=_positive, metavar="VOCABULARY", help="prompts of token ids below this")
    group.add_argument("--timeout", type=_amount, default=120.0, metavar="SECONDS", help="of a whole answer")


def _load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--zipf", type=_skew, action="append", metavar="S", help="at least two skews (default: 1.0 and 0.1)"
    )
    group.add_argument("--requests", type=_positive, default=1000, help="of each open-loop phase")
    group.add_argument("--prompt", type=_positive, default=256, metavar="TOKENS")
    group.add_argument("--answer", type=_positive, default=128, metavar="TOKENS")
    group.add_argument(
        "--trace", type=Path, metavar="CSV", help="arrivals and sizes: TIMESTAMP,ContextTokens,GeneratedTokens"
    )
    group.add_argument(
        "--rate", type=_amount, help="requests a second (default: --load of what was found to be saturation)"
    )
    group.add_argument("--load", type=_share, default=0.7, help="share of saturation")
    group.add_argument("--streams", type=_positive, default=64, help="requests under way when saturation is looked for")
    group.add_argument("--saturation-requests", type=_positive, default=512)
    group.add_argument("--slo-ttft", type=_amount, default=500.0, metavar="MS", help="latest first token")
    group.add_argument(
        "--slo-itl", type=_amount, default=30.0, metavar="MS", help="mean time between an answer's tokens"
    )
    group.add_argument("--seed", type=int, default=7)


def _control(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--state-url", metavar="URL", help="state port: where adapters are, how many requests wait")
    group.add_argument("--state-token-file", type=Path, metavar="FILE")
    group.add_argument(
        "--admin-url", metavar="URL", help="admin port: evict adapters (their version and uri in --models)"
    )
    group.add_argument("--admin-token-file", type=Path, metavar="FILE")
    group.add_argument("--engine-ca", type=Path, metavar="FILE", help="for https: the key ca.crt of POOL-tokens")
    group.add_argument("--engine-name", metavar="NAME", help="for https: POOL.NAMESPACE.engines.lorafleet")
    group.add_argument("--tier-samples", type=_positive, default=20, metavar="N", help="adapters timed from each tier")
    group.add_argument("--own-adapters", type=Path, metavar="DIR", help="with --own: a folder of PEFT folders")
    group.add_argument("--caps", type=_caps, default=(4, 8, 16, 32), help="with --own: distinct adapters of a step")
    group.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="with --own")
    group.add_argument("--memory-bytes", type=_positive, help="with --own, on a CPU")


def _run(parsed: argparse.Namespace) -> int:
    parsed.zipf = tuple(dict.fromkeys(parsed.zipf or DEFAULT_SKEWS))
    wrong = _conflict(parsed)
    if wrong:
        print(f"lorafleet: {wrong}", file=sys.stderr)
        return 2
    try:
        from lorafleet_engine.bench.endpoint.session import run
    except ModuleNotFoundError as error:
        print(f"lorafleet: `bench serve` needs {error.name} (pip install 'lorafleet[bench]')", file=sys.stderr)
        return 1
    return run(parsed)


def _conflict(parsed: argparse.Namespace) -> str:
    """What is wrong with the arguments together; "" when nothing is."""
    if len(parsed.zipf) < 2:
        return "one skew says little: give --zipf at least twice, head-heavy and near-uniform"
    if parsed.own is not None and parsed.own_adapters is None:
        return "--own needs --own-adapters, a folder of PEFT folders"
    if parsed.url is not None and parsed.own_adapters is not None:
        return "--own-adapters goes with --own"
    if parsed.admin_url is not None and parsed.state_url is None:
        return "--admin-url needs --state-url, which tells what came of an eviction"
    if (parsed.engine_ca is None) != (parsed.engine_name is None):
        return "--engine-ca and --engine-name go together: who signs for the engine, and the name that it must have"
    for port in ("state", "admin"):
        if getattr(parsed, f"{port}_url") is not None and getattr(parsed, f"{port}_token_file") is None:
            return f"--{port}-url needs --{port}-token-file"
    if parsed.token_ids is not None and parsed.api == "chat":
        return "--token-ids goes with --api completions"
    return ""


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _amount(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError("must be greater than 0")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError("must be above 0 and at most 1")
    return number


def _skew(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 10:
        raise argparse.ArgumentTypeError("must be from 0 (uniform) to 10")
    return number


def _caps(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))
