from pathlib import Path

import numpy as np
import pytest

from lorafleet_operator.simulation.trace import TraceError, azure_day, read_trace, rescale

ROWS = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2024-05-12 00:00:00.003473+00:00,879,55\n"
)


def write(folder: Path, text: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(text)
    return path


def test_both_years_of_the_dataset_are_read(tmp_path: Path) -> None:
    read = read_trace(write(tmp_path, "".join(ROWS.splitlines(keepends=True)[:3])))
    assert read.times.tolist() == pytest.approx([0.0, 4.314579])
    assert read.prompt_tokens.tolist() == [374, 396]
    assert read.completion_tokens.tolist() == [44, 109]
    with_zone = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + ROWS.splitlines()[3]
    assert read_trace(write(tmp_path, with_zone)).prompt_tokens.tolist() == [879]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,374\n", "line 2: column GeneratedTokens is missing"),
        (ROWS.replace("396", "many"), "line 2: ContextTokens is 'many'"),
        (ROWS.replace("2023-11-16 18:15:46.6805900", "noon"), "line 3: TIMESTAMP is 'noon'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests in it"),
        ("", "no requests in it"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(write(tmp_path, text))


def test_another_rate_keeps_the_shape(tmp_path: Path) -> None:
    day = azure_day(2.0, np.random.default_rng(1))
    assert len(day) / 86_400 == pytest.approx(2.0, rel=0.03)
    faster = rescale(day, 4.0)
    assert faster.times[-1] == pytest.approx(len(day) / 4.0)
    assert np.allclose(faster.times / faster.times[-1], day.times / day.times[-1])


def test_a_made_up_day_has_the_wave_and_the_lengths_of_the_dataset() -> None:
    day = azure_day(3.0, np.random.default_rng(2))
    hourly = np.bincount((day.times // 3600).astype(int), minlength=24)
    assert 12 <= int(hourly.argmax()) <= 16
    assert 0.2 < hourly.min() / hourly.max() < 0.5
    assert np.median(day.prompt_tokens) == pytest.approx(1020, rel=0.05)
    assert np.median(day.completion_tokens) == pytest.approx(129, rel=0.05)
    again = azure_day(3.0, np.random.default_rng(2))
    assert np.array_equal(day.times, again.times)
