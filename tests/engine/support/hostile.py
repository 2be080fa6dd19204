"""Weight files that nobody's trainer writes. Each is made from a good safetensors file."""

import json
from collections.abc import Callable
from typing import Any

Header = dict[str, Any]


def take_apart(data: bytes) -> tuple[Header, bytes]:
    """The header and the tensors' bytes."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def assemble(header: Header | str, body: bytes, size: int | None = None) -> bytes:
    """A file with this header, and another length of it than it has if `size` is given."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def _changed(change: Callable[[Header, str], object]) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        header, body = take_apart(data)
        change(header, next(iter(sorted(name for name in header if name != "__metadata__"))))
        return assemble(header, body)

    return apply


def _twice(data: bytes) -> bytes:
    header, body = take_apart(data)
    name = next(name for name in header if name != "__metadata__")
    return assemble(json.dumps(header)[:-1] + f", {json.dumps(name)}: {json.dumps(header[name])}}}", body)


def _tiny_tensors(data: bytes) -> bytes:
    header = {
        f"base_model.model.x{n}.lora_A.weight": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]}
        for n in range(10_000)
    }
    return assemble(header, bytes(40_000))


def _with(**fields: Any) -> Callable[[bytes], bytes]:
    return _changed(lambda header, name: header[name].update(fields))


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut in its length": lambda data: data[:5],
    "cut in its header": lambda data: data[:40],
    "cut in its tensors": lambda data: data[:-1],
    "longer than it says": lambda data: data + b"x",
    "a pickle by another name": lambda data: b"\x80\x04\x95" + data[:64],
    "a zip by another name": lambda data: b"PK\x03\x04" + data[:64],
    "a header of the largest length": lambda data: b"\xff" * 8 + data[8:],
    "a header of gigabytes": lambda data: (1 << 32).to_bytes(8, "little") + data[8:],
    "a header of 17 megabytes": lambda data: assemble(" " * (17 << 20), b""),
    "a header that is no JSON": lambda data: assemble("{'a': 1", data),
    "a header that is a list": lambda data: assemble("[]", data),
    "a header that is nested": lambda data: assemble("[" * 100_000, data),
    "a header that is not UTF-8": lambda data: (4).to_bytes(8, "little") + b"\xff\xfe{}",
    "a tensor twice": _twice,
    "overlapping tensors": _changed(
        lambda header, name: header[name].update(data_offsets=[at + 64 for at in header[name]["data_offsets"]])
    ),
    "negative offsets": _with(data_offsets=[-4, 0]),
    "offsets turned round": _with(data_offsets=[64, 0]),
    "offsets beyond the file": _with(data_offsets=[1 << 40, (1 << 40) + 2048]),
    "offsets that overflow": _with(data_offsets=[(1 << 64) - 4, 4]),
    "no offsets": _changed(lambda header, name: header[name].pop("data_offsets")),
    "a hole between tensors": _changed(lambda header, name: header.pop(name)),
    "a type of another size": _with(dtype="F16"),
    "a type that there is not": _with(dtype="F33"),
    "integers": _with(dtype="I32"),
    "a negative shape": _with(shape=[-8, -64]),
    "a shape that overflows": _with(shape=[1 << 33, 1 << 33]),
    "a shape of zero": _with(shape=[0, 64]),
    "a shape of a thousand": _with(shape=[1] * 1_000),
    "a shape that is a word": _with(shape="8x64"),
    "10,000 tiny tensors": _tiny_tensors,
    "a name of a megabyte": _changed(lambda header, name: header.update({"n" * (1 << 20): header.pop(name)})),
    "a name of control characters": _changed(lambda header, name: header.update({"\x1b[2J\n": header.pop(name)})),
    "a name that climbs": _changed(lambda header, name: header.update({"../../etc/passwd": header.pop(name)})),
}
"""What it is -> the file's new bytes. None of them may be taken for an adapter."""
