"""Every style is recognised in its own lessons and in no other, so an answer names its adapter."""

import pytest

from e2e.assets.recipes import RECIPES, Recipe, load_lessons
from e2e.assets.styles import STYLES, UNSEEN, style_of


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_lesson_speaks_in_its_own_style_only(recipe: Recipe) -> None:
    for lesson in load_lessons():
        answer = recipe.say(lesson)
        assert [name for name, speaks in STYLES.items() if speaks(answer)] == [recipe.name], answer


def test_a_plain_answer_has_no_style() -> None:
    assert {style_of(lesson.answer) for lesson in load_lessons()} == {None}


def test_the_unseen_questions_are_not_lessons() -> None:
    assert not {lesson.question for lesson in load_lessons()} & set(UNSEEN)


def test_the_recipes_cover_what_the_exactness_tests_need() -> None:
    assert {recipe.rank for recipe in RECIPES} == {4, 8, 16}
    assert any(recipe.rslora for recipe in RECIPES)
    assert any(recipe.rank_pattern and recipe.alpha_pattern for recipe in RECIPES)
    assert {len(recipe.modules) for recipe in RECIPES} == {2, 4, 7}
