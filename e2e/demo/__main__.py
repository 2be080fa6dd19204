"""Installs the chart, applies the quickstart, creates keys and asks one question to the base and two adapters.

Called by `make demo` when the cluster is up and has the images. May be run again: every step repairs or repeats.
Exits 1 with the reason when an answer is not in its adapter's style.
"""

import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

import openai

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client
from e2e.cluster.errors import ClusterError
from e2e.fleet import DEMO, KINDS, NAMESPACE, Fleet, find_fleet, forwarded
from e2e.quickstart import ACME, GLOBEX, Keys, apply_quickstart, create_keys

QUESTION = UNSEEN[4]
BASE = "smollm2-135m"


class DemoError(Exception):
    """An answer that should not be: the demo has failed."""


def main() -> int:
    """Run the whole demo; 0 when every answer was as promised."""
    fleet = find_fleet()
    try:
        keys = bring_up(fleet)
        with forwarded(fleet.kubectl, "svc/lorafleet-gateway", 8080, NAMESPACE) as address:
            converse(address, keys)
        print(f"\n$ kubectl get lp,la,lt -n {DEMO}")
        print(fleet.kubectl.run("get", "lp,la,lt", "-n", DEMO))
    except (ClusterError, DemoError, openai.APIError, ConnectionError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        print(f"Look at: kubectl get pods,lp,la,lt -A; kubectl -n {DEMO} describe lp,la,lt", file=sys.stderr)
        return 1
    print(next_steps(fleet))
    return 0


def next_steps(fleet: Fleet) -> str:
    """What to type to go on by hand."""
    own = f"  export KUBECONFIG={fleet.kubectl.kubeconfig}\n" if fleet.kubectl.kubeconfig else ""
    return (
        f"Each adapter answered in its trained style. To go on by hand:\n{own}"
        f"  alias kubectl={fleet.kubectl.program} lorafleet=$PWD/.venv/bin/lorafleet\n"
        f"  KEY=$(lorafleet key create -n {DEMO} --tenant {ACME})\n"
        f"  kubectl -n {NAMESPACE} port-forward svc/lorafleet-gateway 8080 &\n"
        '  curl localhost:8080/v1/chat/completions -H "Authorization: Bearer $KEY" \\\n'
        f"""    -d '{{"model": "pirate", "messages": [{{"role": "user", "content": "{QUESTION}"}}]}}'"""
    )


def bring_up(fleet: Fleet) -> Keys:
    """Install, apply, create keys, wait for Ready."""
    with step(f"helm upgrade --install lorafleet charts/lorafleet -n {NAMESPACE}"):
        fleet.install()
    with step("kubectl apply -k examples/quickstart"):
        apply_quickstart(fleet)
    with step(f"lorafleet key create -n {DEMO} --tenant {ACME} (and {GLOBEX})"):
        keys = create_keys(fleet)
    with step(f"kubectl wait --for=condition=Ready {','.join(KINDS)} --all -n {DEMO}"):
        fleet.wait_ready()
    return keys


def converse(address: str, keys: Keys) -> None:
    """Ask through the gateway. Raises DemoError where an answer lacks its style or a foreign key is let in."""
    acme = Client(address, keys.acme)
    print(f"\nTenant {ACME} may call {', '.join(sorted(acme.models()))}.\nQuestion: {QUESTION}")
    for model, style in ((BASE, None), ("pirate", "pirate"), ("shout", "shout")):
        answer = acme.ask(model, QUESTION)
        print(textwrap.indent(textwrap.fill(answer, 100), f"{model:>14} | "))
        if style_of(answer) != style:
            raise DemoError(f"{model} should have answered in the style {style}, not {style_of(answer)}")
    try:
        Client(address, keys.globex).ask("pirate", QUESTION)
    except openai.NotFoundError as refused:
        print(f"\nTenant {GLOBEX} asks for pirate. {refused.message}")
    else:
        raise DemoError(f"tenant {GLOBEX} was answered by an adapter that is not its own")


@contextmanager
def step(command: str) -> Iterator[None]:
    """Show a command and how long it took."""
    print(f"$ {command}", end="", flush=True)
    begun = time.monotonic()
    yield
    print(f"   ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
