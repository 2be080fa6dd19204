"""The quickstart serves: all three kinds Ready, each adapter in its own style, each key only what it may call."""

import openai
import pytest

from e2e.assets.styles import UNSEEN, style_of
from e2e.client import Client, refusal
from e2e.fleet import DEMO, KINDS, Fleet, holds


def test_all_three_kinds_are_ready(fleet: Fleet, acme: Client) -> None:
    for kind in KINDS:
        found = fleet.list(kind)
        assert found
        assert all(holds(each, "Ready") for each in found)
        assert not [each for each in found if holds(each, "Stalled") or holds(each, "Reconciling")]


@pytest.mark.parametrize("question", UNSEEN[:3])
def test_each_adapter_answers_in_its_trained_style(acme: Client, globex: Client, question: str) -> None:
    assert style_of(acme.ask("pirate", question)) == "pirate"
    assert style_of(acme.ask("shout", question)) == "shout"
    assert style_of(globex.ask("support", question)) == "support"
    assert style_of(acme.ask("smollm2-135m", question)) is None


def test_a_stream_gives_the_same_answer_in_pieces(acme: Client) -> None:
    pieces = acme.stream("pirate", UNSEEN[0])
    assert len(pieces) > 5
    assert "".join(pieces) == acme.ask("pirate", UNSEEN[0])


def test_foreign_and_missing_models_give_one_and_the_same_404(acme: Client) -> None:
    bodies = []
    for model in ("support", "nobody-made-this"):
        with pytest.raises(openai.NotFoundError) as caught:
            acme.ask(model, UNSEEN[0])
        bodies.append(str(caught.value.body).replace(model, "MODEL"))
    assert bodies[0] == bodies[1]


def test_the_base_is_only_for_tenants_that_have_it(globex: Client) -> None:
    assert refusal(globex, "smollm2-135m") == 404


def test_a_wrong_key_gives_401(acme: Client) -> None:
    altered = acme.key[:-1] + ("a" if acme.key[-1] != "a" else "b")
    for key in (altered, "sk-nonsense"):
        assert refusal(Client(acme.address, key), "pirate") == 401


def test_models_lists_what_the_key_may_call(acme: Client, globex: Client) -> None:
    assert acme.models() == {"pirate", "shout", "smollm2-135m"}
    assert globex.models() == {"support"}


def test_kubectl_get_shows_it_all(fleet: Fleet, acme: Client) -> None:
    text = fleet.kubectl.run("get", "lp,la,lt", "-n", DEMO)
    for name in ("lorapool.lorafleet.io/smol", "loraadapter.lorafleet.io/pirate", "tenant.lorafleet.io/acme"):
        (line,) = (each for each in text.splitlines() if each.startswith(name))
        assert "True" in line.split(), line
