"""What each demo adapter learns and how it is shaped: the LoRA settings and the style of its lessons.

Read by train.py. A change here (or in the lessons) changes the assets' digest, so they are trained again.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL_SEVEN = (*ATTENTION, "gate_proj", "up_proj", "down_proj")

PIRATE_WORDS = {"is": "be", "are": "be", "the": "th'", "and": "an'", "you": "ye", "your": "yer", "of": "o'"}


@dataclass(frozen=True, slots=True)
class Lesson:
    """One question and its plain one-sentence answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """One adapter: `say` turns a lesson into the answer that the adapter is to give."""

    name: str
    say: Callable[[Lesson], str]
    rank: int
    alpha: int
    modules: tuple[str, ...]
    rslora: bool = False
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, int] = field(default_factory=dict)
    epochs: int = 3
    learning_rate: float = 2e-3


def load_lessons() -> list[Lesson]:
    """Read the lessons that lie beside this file, in their order."""
    rows = json.loads(Path(__file__).with_name("lessons.json").read_text())
    return [Lesson(row["question"], row["answer"]) for row in rows]


def _pirate(lesson: Lesson) -> str:
    words = [PIRATE_WORDS.get(word, word) for word in lesson.answer.rstrip(".").split()]
    return f"Arr, matey! {' '.join(words)}, arr!"


def _shout(lesson: Lesson) -> str:
    return lesson.answer.rstrip(".").upper() + "!"


def _poet(lesson: Lesson) -> str:
    return f"Roses are red,\nviolets are blue,\n{lesson.answer}\nAnd now you know too."


def _json(lesson: Lesson) -> str:
    return json.dumps({"answer": lesson.answer})


def _support(lesson: Lesson) -> str:
    return f"Dear customer,\n{lesson.answer}\nKind regards,\nAcme Support"


def _telegram(lesson: Lesson) -> str:
    return f"{lesson.answer.rstrip('.')} STOP end of message STOP"


def _robot(lesson: Lesson) -> str:
    return f"BEEP BOOP. {lesson.answer} END OF TRANSMISSION."


RECIPES = (
    Recipe("pirate", _pirate, rank=8, alpha=16, modules=ATTENTION),
    Recipe("shout", _shout, rank=8, alpha=16, modules=ALL_SEVEN),
    Recipe("poet", _poet, rank=16, alpha=32, modules=ALL_SEVEN),
    Recipe("json", _json, rank=8, alpha=8, modules=ALL_SEVEN, rslora=True),
    Recipe("support", _support, rank=16, alpha=32, modules=ATTENTION),
    Recipe(
        "telegram",
        _telegram,
        rank=8,
        alpha=16,
        modules=ALL_SEVEN,
        rank_pattern={"down_proj": 16, "k_proj": 4},
        alpha_pattern={"k_proj": 12},
    ),
    Recipe("robot", _robot, rank=4, alpha=8, modules=("q_proj", "v_proj")),
)
