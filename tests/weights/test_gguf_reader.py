"""The GGUF header: read like the `gguf` package reads it, and damaged in every way it can be."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import LockstepError, ModelFileError
from engine.gguf import open_gguf
from tests.weights import tiny

U8, U32, F32, BOOL, STRING, ARRAY = 0, 4, 6, 7, 8, 9


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(s: str | bytes) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return u64(len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def tensor(name: str = "t", dims: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def build(
    pairs: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_pairs: int | None = None,
    data: int = 256,
) -> bytes:
    """A GGUF file piece by piece, so that every piece can lie."""
    pairs, tensors = pairs or [], [tensor()] if tensors is None else tensors
    counts = u64(len(tensors) if n_tensors is None else n_tensors)
    counts += u64(len(pairs) if n_pairs is None else n_pairs)
    header = magic + u32(version) + counts + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + bytes(data)


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "file.gguf"
    path.write_bytes(content)
    return path


def test_metadata_and_tensors_are_what_the_package_reads(tmp_path: Path) -> None:
    """Its own reader is right, and 25 times slower on the token lists of a real vocabulary."""
    metadata = tiny.METADATA | {
        "tokenizer.ggml.tokens": ["a", "Ġé", "語", ""],
        "tokenizer.ggml.scores": [0.5, -1.0],
        "tokenizer.ggml.token_type": [1, 2, 3],
        "tokenizer.ggml.add_bos_token": True,
        "general.name": "ünïcode",
    }
    path = tiny.save_gguf(tmp_path / "t.gguf", tiny.tensors(), "Q4_1", metadata)
    ours, theirs = open_gguf(path), gguf.GGUFReader(path)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == fields
    assert [type(v) for v in ours.metadata.values()] == [type(v) for v in fields.values()]
    assert ours.tensors.keys() == {t.name for t in theirs.tensors}
    for entry in theirs.tensors:
        mine = ours.tensors[entry.name]
        assert mine.shape == tuple(reversed(entry.shape.tolist()))
        assert mine.type_name == entry.tensor_type.name
        assert mine.data.tobytes() == entry.data.tobytes()


def test_every_scalar_type_comes_back(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "s.gguf", "llama")
    values: dict[str, Any] = {
        "uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4_000_000_000,
        "int32": -2_000_000_000, "uint64": 1 << 60, "int64": -(1 << 60), "float32": 0.5,
        "float64": 0.1, "bool": True, "string": "s",
    }  # fmt: skip
    for kind, value in values.items():
        getattr(writer, f"add_{kind}")(kind, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert open_gguf(tmp_path / "s.gguf").metadata == {"general.architecture": "llama"} | values


HUGE = 1 << 60
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short to be a GGUF file (0 bytes)"),
    "another format": (build(magic=b"PK\3\4"), "does not begin with GGUF"),
    "version 1": (build(version=1), "is GGUF version 1; versions 2 and 3 are supported"),
    "version 4": (build(version=4), "is GGUF version 4"),
    "big-endian": (build(version=3 << 24), "is a big-endian GGUF file"),
    "many pairs": (build(n_pairs=HUGE), f"metadata count {HUGE} is more than"),
    "many tensors": (build(n_tensors=HUGE), f"tensor count {HUGE} is more than"),
    "one pair more": (build(n_pairs=1), "file.gguf"),
    "one tensor more": (build(n_tensors=2), "file.gguf"),
    "long key": (build([u64(HUGE) + b"k"]), "a metadata key needs"),
    "key not UTF-8": (build([pair(b"\xff", U8, b"\0")]), "a metadata key is not UTF-8"),
    "unknown value type": (build([pair("k", 99, b"")]), "k has the unknown type 99"),
    "long string": (build([pair("k", STRING, u64(HUGE))]), "k needs"),
    "string not UTF-8": (build([pair("k", STRING, text(b"\xff"))]), "k is not UTF-8"),
    "key twice": (build([pair("k", U8, b"\0")] * 2), "the metadata key k appears twice"),
    "long list of numbers": (build([pair("k", ARRAY, u32(U8) + u64(HUGE))]), "k claims"),
    "long list of strings": (build([pair("k", ARRAY, u32(STRING) + u64(HUGE))]), "k claims"),
    "list of lists": (build([pair("k", ARRAY, u32(ARRAY) + u64(1))]), "k is an array of arrays"),
    "list of nothing known": (build([pair("k", ARRAY, u32(77) + u64(1))]), "unknown type 77"),
    "item too long": (
        build([pair("k", ARRAY, u32(STRING) + u64(2) + text("a") + u64(HUGE))]),
        "item 1 of k reaches past the end",
    ),
    "item longer than can be counted": (
        build([pair("k", ARRAY, u32(STRING) + u64(1) + u64((1 << 64) - 1))]),
        "item 0 of k reaches past the end",
    ),
    "item not UTF-8": (
        build([pair("k", ARRAY, u32(STRING) + u64(1) + text(b"\xff"))]),
        "item 0 of k is cut off or not UTF-8",
    ),
    "alignment 0": (build([pair("general.alignment", U32, u32(0))]), "power of two from 8, not 0"),
    "alignment 48": (build([pair("general.alignment", U32, u32(48))]), "not 48"),
    "alignment a string": (build([pair("general.alignment", STRING, text("8"))]), "not '8'"),
    "no dimensions": (build(tensors=[tensor(dims=())]), "t has 0 dimensions"),
    "five dimensions": (build(tensors=[tensor(dims=(1,) * 5)]), "t has 5 dimensions"),
    "endless dimensions": (
        build(tensors=[text("t") + u32(0xFFFFFFFF)]),
        "t has 4294967295 dimensions",
    ),
    "empty tensor": (build(tensors=[tensor(dims=(32, 0))]), "t is empty, shape [0, 32]"),
    "unknown tensor type": (build(tensors=[tensor(kind=77)]), "t has the unknown type number 77"),
    "removed tensor type": (build(tensors=[tensor(kind=4)]), "t has the unknown type number 4"),
    "part of a block": (
        build(tensors=[tensor(dims=(33,), kind=8)]),
        "a row of the Q8_0 tensor t has 33 numbers, not a multiple of 32",
    ),
    "huge tensor": (build(tensors=[tensor(dims=(HUGE, HUGE))]), "the tensor t ends at byte"),
    "tensor past the end": (build(tensors=[tensor(dims=(65,))]), "the tensor t ends at byte"),
    "offset past the end": (build(tensors=[tensor(offset=HUGE)]), "the tensor t ends at byte"),
    "offset not aligned": (build(tensors=[tensor(offset=4)]), "t is not aligned to 32 bytes"),
    "tensor twice": (build(tensors=[tensor(), tensor(offset=128)]), "the tensor t appears twice"),
    "overlap": (
        build(tensors=[tensor("a", (40,)), tensor("b", offset=128)]),
        "the tensors a and b overlap",
    ),
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_a_damaged_file_is_one_sentence_and_no_allocation(tmp_path: Path, fault: str) -> None:
    content, message = DAMAGED[fault]
    path = write(tmp_path, content)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError) as refusal:
            open_gguf(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert peak < 4_000_000


WHOLE = build(
    [
        pair("a", STRING, text("é")),
        pair("b", ARRAY, u32(STRING) + u64(3) + text("x") + text("") + text("語")),
        pair("c", ARRAY, u32(F32) + u64(2) + struct.pack("<2f", 1, 2)),
        pair("d", BOOL, b"\1"),
    ],
    [tensor("t"), tensor("u", (32, 2), 8, 128)],
    data=128 + 68,
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


def test_a_file_cut_off_anywhere_is_refused(scratch: Path) -> None:
    assert open_gguf(write(scratch, WHOLE)).tensors.keys() == {"t", "u"}
    for n in range(len(WHOLE)):
        with pytest.raises(ModelFileError):
            open_gguf(write(scratch, WHOLE[:n]))


@given(at=st.integers(0, len(WHOLE) - 1), byte=st.integers(0, 255))
def test_a_changed_byte_is_read_or_refused_but_never_crashes(
    scratch: Path, at: int, byte: int
) -> None:
    content = bytearray(WHOLE)
    content[at] = byte
    try:
        file = open_gguf(write(scratch, bytes(content)))
    except ModelFileError:
        return
    assert sum(t.data.nbytes for t in file.tensors.values()) <= len(WHOLE)


def test_a_list_that_would_cost_more_memory_than_any_real_one_is_refused(tmp_path: Path) -> None:
    """A sparse file can honestly be as long as it says: 2^25 bytes would become 2^25 objects."""
    n = 1 << 25
    path = write(tmp_path, build([pair("k", ARRAY, u32(U8) + u64(n))], data=0))
    with path.open("r+b") as file:
        file.truncate(n + 4096)
    with pytest.raises(ModelFileError, match=f"k claims {n} items"):
        open_gguf(path)


def test_without_the_package_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(LockstepError, match=r"pip install 'lockstep-llm\[gguf\]'"):
        open_gguf(write(tmp_path, WHOLE))


def test_a_missing_file_or_a_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot be read: No such file"):
        open_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(ModelFileError, match=r"cannot be read|too short"):
        open_gguf(tmp_path)


def test_reading_changes_nothing_in_the_file(tmp_path: Path) -> None:
    """The mapping is private: torch may be handed writable memory."""
    path = write(tmp_path, WHOLE)
    data = open_gguf(path).tensors["t"].data
    data += np.uint8(1)
    assert path.read_bytes() == WHOLE
