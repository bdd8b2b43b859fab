"""GGUF headers: what a good one says, and that no bad one does more than raise a ModelError."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.errors import ModelError
from paceline.weights import gguf_header
from paceline.weights.checkpoint import open_checkpoint
from paceline.weights.gguf_header import read_gguf_header
from tests.weights.files import gguf_arrays, tiny_model, write_gguf

UINT8, UINT32, STRING, ARRAY = 0, 4, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def field(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims: list[int], kind: int = 0, offset: int = 0, num_dims: int | None = None) -> bytes:
    head = struct.pack("<I", len(dims) if num_dims is None else num_dims)
    return text(name) + head + struct.pack(f"<{len(dims)}QIQ", *dims, kind, offset)


def header(
    fields: list[bytes],
    tensors: list[bytes],
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_fields: int | None = None,
    data: int = 256,
) -> bytes:
    counts = struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(fields) if num_fields is None else num_fields,
    )
    raw = magic + counts + b"".join(fields) + b"".join(tensors)
    return raw + bytes(-len(raw) % 32) + bytes(data)


def read(folder: Path, raw: bytes) -> gguf_header.GGUFHeader:
    path = folder / "x.gguf"
    path.write_bytes(raw)
    return read_gguf_header(path)


def test_it_says_what_the_gguf_packages_reader_says(smollm2_gguf: Path) -> None:
    ours, theirs = read_gguf_header(smollm2_gguf), GGUFReader(smollm2_gguf)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == fields
    assert {t.name: (t.type, t.offset, t.nbytes, t.shape) for t in ours.tensors.values()} == {
        t.name: (t.tensor_type, t.data_offset, t.n_bytes, tuple(reversed(t.shape.tolist()))) for t in theirs.tensors
    }


def test_every_kind_of_value(tmp_path: Path) -> None:
    values = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
    fields = [field(f"k{kind}", kind, struct.pack("<" + letter, 1)) for kind, letter in values.items()]
    fields.append(field("text", STRING, text("häh")))
    fields.append(field("numbers", ARRAY, struct.pack("<IQ3h", 3, 3, -1, 0, 1)))
    fields.append(field("texts", ARRAY, struct.pack("<IQ", STRING, 2) + text("a") + text(b"\xff")))
    fields.append(field("lists", ARRAY, struct.pack("<IQIQ2B", ARRAY, 1, UINT8, 2, 8, 9)))
    metadata = read(tmp_path, header(fields, [])).metadata
    assert metadata == {f"k{kind}": 1 for kind in values} | {
        "text": "häh",
        "numbers": [-1, 0, 1],
        "texts": ["a", "\ufffd"],
        "lists": [[8, 9]],
    }


def test_alignment_moves_the_data(tmp_path: Path) -> None:
    aligned = field("general.alignment", UINT32, struct.pack("<I", 64))
    result = read(tmp_path, header([aligned], [tensor("x", [4], offset=64)]))
    assert result.tensors["x"].offset % 64 == 0
    assert result.tensors["x"].nbytes == 16


def nested(depth: int) -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQB", UINT8, 1, 0)


HUGE = 1 << 62
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a usable GGUF file"),
    "magic": (header([], [], magic=b"GGML"), "does not begin with GGUF"),
    "version": (header([], [], version=1), "version 1 is not supported"),
    "big-endian": (header([], [], version=3 << 24), "not supported"),
    "more tensors than fit": (header([], [], num_tensors=HUGE), f"{HUGE} tensors cannot fit"),
    "more fields than fit": (header([], [], num_fields=HUGE), f"{HUGE} metadata fields cannot fit"),
    "all-ones count": (header([], [], num_tensors=(1 << 64) - 1), "cannot fit"),
    "long key": (header([struct.pack("<Q", HUGE)], []), "does not fit"),
    "long text": (header([field("k", STRING, struct.pack("<Q", HUGE))], []), "does not fit"),
    "long list": (header([field("k", ARRAY, struct.pack("<IQ", UINT8, HUGE))], []), "cannot fit"),
    "list of long texts": (
        header([field("k", ARRAY, struct.pack("<IQQ", STRING, 1, HUGE))], []),
        "hold a string that does not fit",
    ),
    "list of texts past the end": (
        header([field("k", ARRAY, struct.pack("<IQ", STRING, 3) + text("a"))], [], data=0),
        "cannot fit|hold a string",
    ),
    "unknown type": (header([field("k", 13, b"")], []), "unknown type 13"),
    "deep lists": (header([field("k", ARRAY, nested(5000))], []), "lists within lists"),
    "twice the same key": (header([field("k", UINT8, b"\0")] * 2, []), "'k' occurs twice"),
    "alignment 0": (header([field("general.alignment", UINT32, bytes(4))], []), "not a power of two"),
    "alignment 48": (header([field("general.alignment", UINT32, struct.pack("<I", 48))], []), "power of two"),
    "alignment text": (header([field("general.alignment", STRING, text("32"))], []), "power of two"),
    "alignment 2³¹": (header([field("general.alignment", UINT32, struct.pack("<I", 1 << 31))], []), "power of two"),
    "no dimensions": (header([], [tensor("x", [])]), "0 dimensions"),
    "too many dimensions": (header([], [tensor("x", [1], num_dims=1 << 31)]), "dimensions"),
    "dimension 0": (header([], [tensor("x", [0])]), "cannot have the shape"),
    "huge dimension": (header([], [tensor("x", [HUGE])]), "cannot have the shape"),
    # 2³² · 2³² elements are 2⁶⁴, which a 64-bit product would take for 0.
    "product that wraps": (header([], [tensor("x", [1 << 32, 1 << 32])]), "cannot have the shape"),
    "tensor type": (header([], [tensor("x", [4], kind=200)]), "unknown type 200"),
    "removed tensor type": (header([], [tensor("x", [32], kind=4)]), "unknown type 4"),
    "part of a block": (header([], [tensor("x", [33], kind=2)]), "cannot have the shape"),
    "offset past the end": (header([], [tensor("x", [4], offset=1 << 20)]), "does not lie within"),
    "offset near 2⁶⁴": (header([], [tensor("x", [4], offset=(1 << 64) - 32)]), "does not lie within"),
    "offset not aligned": (header([], [tensor("x", [4], offset=4)]), "does not lie within"),
    "end past the end": (header([], [tensor("x", [65])]), "does not lie within"),
    "twice the same tensor": (header([], [tensor("x", [4])] * 2), "'x' occurs twice"),
    "long name": (header([], [tensor("x" * 300, [4])]), "300 characters"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_refused_with_its_reason(name: str, tmp_path: Path) -> None:
    raw, reason = BAD[name]
    with pytest.raises(ModelError, match=reason):
        read(tmp_path, raw)


def test_lists_are_limited_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte of the file may become tens of bytes of Python objects."""
    monkeypatch.setattr(gguf_header, "_MAX_ENTRIES", 1000)
    lists = [field(f"k{i}", ARRAY, struct.pack("<IQ", UINT8, 300) + bytes(300)) for i in range(4)]
    assert len(read(tmp_path, header(lists[:3], [])).metadata) == 3
    with pytest.raises(ModelError, match="more than 1000 entries"):
        read(tmp_path, header(lists, []))


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_gguf_header(tmp_path)


# ---------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    model = tiny_model(num_hidden_layers=1)
    fields: dict[str, Any] = {"llama.block_count": 1}
    return write_gguf(tmp_path_factory.mktemp("good") / "x.gguf", gguf_arrays(model), fields=fields).read_bytes()


def survives(open_it: Callable[[], object], most_bytes: int = 4 << 20) -> None:
    """Opening works or ends in a ModelError, and takes no more memory than a few times the file."""
    tracemalloc.start()
    try:
        open_it()
    except ModelError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < most_bytes


def header_length(raw: bytes, path: Path) -> int:
    path.write_bytes(raw)
    return min(t.offset for t in read_gguf_header(path).tensors.values())


def test_a_file_cut_anywhere(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    length = header_length(good, path)
    for cut in (*range(0, length, 7), length, len(good) - 1):
        path.write_bytes(good[:cut])
        with pytest.raises(ModelError):
            open_checkpoint(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_changed_anywhere_in_the_header(good: bytes, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.gguf"
    length = header_length(good, path)
    raw = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, length - 1))
        new = data.draw(st.one_of(st.binary(min_size=1, max_size=1), st.sampled_from([b"\xff" * 8, b"\0" * 8])))
        raw[at : at + len(new)] = new
    path.write_bytes(raw)
    survives(lambda: open_checkpoint(path))
