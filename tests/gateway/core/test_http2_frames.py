"""Frames of HTTP/2: cut from bytes however they arrive, and refused when they are none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorafleet_gateway.core.http2_frames import (
    MAX_FRAME,
    PREFACE,
    Flag,
    Frame,
    FrameBuffer,
    Kind,
    Setting,
    WireError,
    build_frame,
    build_settings,
    build_window_update,
    read_data,
    read_increment,
    read_settings,
)

FRAMES = st.lists(
    st.builds(
        Frame,
        st.sampled_from(Kind),
        st.integers(0, 255),
        st.integers(0, (1 << 31) - 1),
        st.binary(max_size=40) | st.just(b"x" * MAX_FRAME),
    ),
    max_size=6,
)


@given(FRAMES, st.lists(st.integers(1, 50), max_size=20))
def test_frames_are_the_same_however_they_are_cut(frames: list[Frame], lengths: list[int]) -> None:
    data = PREFACE + b"".join(build_frame(Kind(each.kind), *each[1:]) for each in frames)
    buffer = FrameBuffer()
    found: list[Frame] = []
    for length in (*lengths, len(data)):
        part, data = data[:length], data[length:]
        found += buffer.feed(part)
    assert found == frames


def test_the_stream_is_read_without_its_reserved_bit() -> None:
    sent = bytearray(PREFACE + build_frame(Kind.PING, 0, 7, b"12345678"))
    sent[len(PREFACE) + 5] |= 0x80
    assert [each.stream for each in FrameBuffer().feed(bytes(sent))] == [7]


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1", b"P ", PREFACE + build_frame(Kind.DATA, 0, 1, b"x" * (MAX_FRAME + 1))]
)
def test_what_is_no_http2_is_refused(sent: bytes) -> None:
    with pytest.raises(WireError):
        list(FrameBuffer().feed(sent))


def test_padding_is_no_content() -> None:
    assert read_data(Frame(Kind.DATA, Flag.PADDED, 1, b"\x02contents--")) == b"contents"
    assert read_data(Frame(Kind.DATA, Flag.PADDED, 1, b"\x00contents")) == b"contents"
    assert read_data(Frame(Kind.DATA, Flag.NONE, 1, b"\x02contents")) == b"\x02contents"
    for broken in (b"", b"\x01", b"\x09contents"):
        with pytest.raises(WireError):
            read_data(Frame(Kind.DATA, Flag.PADDED, 1, broken))


def test_settings_and_window_updates_are_read_as_they_were_built() -> None:
    (settings,) = FrameBuffer().feed(PREFACE + build_settings({Setting.INITIAL_WINDOW_SIZE: 12345}))
    assert read_settings(settings.payload) == {Setting.INITIAL_WINDOW_SIZE: 12345}
    (update,) = FrameBuffer().feed(PREFACE + build_window_update(3, 77))
    assert (update.stream, read_increment(update.payload)) == (3, 77)
    for read in (read_settings, read_increment):
        with pytest.raises(WireError):
            read(b"12345")
