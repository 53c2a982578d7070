"""Reads a GGUF file: metadata as plain Python values, tensors as mapped, still encoded bytes.

Every number in the header is checked against the file's size before it is used. The `gguf` package
supplies the format's types and block sizes; its own reader takes seconds for the token lists of a
real vocabulary and trusts the file. No torch in here: the tokenizer reads GGUF files too.

Source: the GGUF specification (ggml's docs/gguf.md). Magic, version, counts, key/value pairs,
tensor descriptions, padding to `general.alignment`, tensor data; all of it little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import LockstepError, ModelFileError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_VERSIONS = (2, 3)
_MAX_DIMS = 4
# No list of a real file comes near (the largest vocabularies have 262144 tokens); a list becomes
# Python objects, so a larger one would cost far more memory than the file has bytes.
_MAX_ITEMS = 1 << 24
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor: `shape` in torch order (rows first), `data` its encoded rows as uint8.

    `data` has the shape `[*shape[:-1], bytes per row]` and is mapped, not read, until it is used.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class GGUFFile:
    """The file's metadata (str, int, float, bool or a list of one of them) and tensors by name."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    pages: mmap.mmap

    def release(self) -> None:
        """Gives back the memory of the pages read so far; a page that is used again is read again."""
        if hasattr(self.pages, "madvise"):  # not on Windows
            self.pages.madvise(mmap.MADV_DONTNEED)

    def dequantize(self, rows: npt.NDArray[np.uint8], type_name: str) -> npt.NDArray[np.float32]:
        """Encoded rows of the type `type_name` as float32; the last axis becomes a row's numbers."""
        gguf = _package()
        values: npt.NDArray[np.float32] = gguf.dequantize(
            rows, gguf.GGMLQuantizationType[type_name]
        )
        return values


def open_gguf(path: str | Path) -> GGUFFile:
    """Maps the file and reads its header; a damaged or unsupported file is a ModelFileError."""
    path = Path(path)
    gguf = _package()
    import numpy as np

    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size < 4 + 4 + 8 + 8:
                raise ModelFileError(f"{path} is too short to be a GGUF file ({size} bytes)")
            # Copy-on-write, so that torch gets writable memory although nothing writes to the file.
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    header = _Header(path, np.frombuffer(pages, dtype=np.uint8), gguf)
    header.check_magic()
    n_tensors = header.count("tensor", _SMALLEST_TENSOR)
    n_pairs = header.count("metadata", _SMALLEST_PAIR)
    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key, value = header.pair()
        if key in metadata:
            raise header.damaged(f"the metadata key {key} appears twice")
        metadata[key] = value
    described = [header.tensor() for _ in range(n_tensors)]
    return GGUFFile(path, metadata, _place(header, described, metadata), pages)


def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise LockstepError(
            "reading a .gguf file needs the package gguf: pip install 'lockstep-llm[gguf]'"
        ) from error
    return gguf


@dataclass(frozen=True)
class _Described:
    """A tensor as the header describes it; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    row_bytes: int
    offset: int

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.row_bytes


class _Header:
    """A cursor over the header that refuses to pass the end of the file."""

    def __init__(self, path: Path, data: npt.NDArray[np.uint8], gguf: Any) -> None:
        self.path = path
        self.data = data
        self.view = data.data
        self.size = len(self.view)
        self.at = 0
        self.gguf = gguf
        kind = gguf.GGUFValueType
        self.scalars: dict[Any, struct.Struct] = {
            kind.UINT8: struct.Struct("<B"),
            kind.INT8: struct.Struct("<b"),
            kind.UINT16: struct.Struct("<H"),
            kind.INT16: struct.Struct("<h"),
            kind.UINT32: struct.Struct("<I"),
            kind.INT32: struct.Struct("<i"),
            kind.FLOAT32: struct.Struct("<f"),
            kind.UINT64: struct.Struct("<Q"),
            kind.INT64: struct.Struct("<q"),
            kind.FLOAT64: struct.Struct("<d"),
            kind.BOOL: struct.Struct("<?"),
        }

    def damaged(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self.path} is not a sound GGUF file: {what}")

    def take(self, n: int, what: str) -> memoryview:
        """The next `n` bytes of the file."""
        if n > self.size - self.at:
            raise ModelFileError(
                f"{self.path} is truncated or damaged: {what} needs {n} bytes at byte {self.at}, "
                f"the file has {self.size}"
            )
        piece = self.view[self.at : self.at + n]
        self.at += n
        return piece

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def check_magic(self) -> None:
        if bytes(self.take(4, "the magic")) != b"GGUF":
            raise ModelFileError(f"{self.path} is not a GGUF file: it does not begin with GGUF")
        version = self.u32("the version")
        if version & 0xFFFF == 0:
            raise ModelFileError(
                f"{self.path} is a big-endian GGUF file, which is not supported; "
                "convert it to little-endian (gguf-convert-endian)"
            )
        if version not in _VERSIONS:
            raise ModelFileError(
                f"{self.path} is GGUF version {version}; versions 2 and 3 are supported"
            )

    def count(self, what: str, smallest: int) -> int:
        """A count of entries of at least `smallest` bytes each."""
        n = self.u64(f"the {what} count")
        if n > (self.size - self.at) // smallest:
            raise self.damaged(f"its {what} count {n} is more than {self.size} bytes can hold")
        return n

    def string(self, what: str) -> str:
        n = self.u64(what)
        try:
            return str(self.take(n, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is not UTF-8") from error

    def pair(self) -> tuple[str, Any]:
        key = self.string("a metadata key")
        kind = self.value_type(key)
        if kind is self.gguf.GGUFValueType.ARRAY:
            return key, self.array(key)
        if kind is self.gguf.GGUFValueType.STRING:
            return key, self.string(key)
        scalar = self.scalars[kind]
        return key, scalar.unpack(self.take(scalar.size, key))[0]

    def value_type(self, key: str) -> Any:
        number = self.u32(f"the type of {key}")
        try:
            return self.gguf.GGUFValueType(number)
        except ValueError as error:
            raise self.damaged(f"{key} has the unknown type {number}") from error

    def array(self, key: str) -> list[Any]:
        kind = self.value_type(key)
        if kind is self.gguf.GGUFValueType.ARRAY:
            raise ModelFileError(
                f"{self.path}: {key} is an array of arrays, which is not supported"
            )
        n = self.u64(f"the length of {key}")
        is_string = kind is self.gguf.GGUFValueType.STRING
        smallest = 8 if is_string else self.scalars[kind].size
        if n > _MAX_ITEMS or n > (self.size - self.at) // smallest:
            raise self.damaged(
                f"{key} claims {n} items, more than the file can hold or than is sane"
            )
        if is_string:
            return self.strings(n, key)
        code = self.scalars[kind].format[1:]
        return list(struct.unpack(f"<{n}{code}", self.take(n * smallest, key)))

    def strings(self, n: int, key: str) -> list[str]:
        # The one hot loop of the file (100,000 strings and more), so without a call per field.
        view, at, size = self.view, self.at, self.size
        length = struct.Struct("<Q").unpack_from
        items: list[str] = []
        try:
            for _ in range(n):
                start = at + 8
                at = start + length(view, at)[0]
                if at > size:
                    break
                items.append(str(view[start:at], "utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            raise self.damaged(f"item {len(items)} of {key} is cut off or not UTF-8") from error
        if len(items) < n:
            raise self.damaged(f"item {len(items)} of {key} reaches past the end of the file")
        self.at = at
        return items

    def tensor(self) -> _Described:
        name = self.string("a tensor's name")
        n_dims = self.u32(f"the dimensions of {name}")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise self.damaged(f"the tensor {name} has {n_dims} dimensions, not 1 to {_MAX_DIMS}")
        shape = tuple(self.u64(f"the shape of {name}") for _ in range(n_dims))[::-1]
        number = self.u32(f"the type of {name}")
        offset = self.u64(f"the offset of {name}")
        if 0 in shape:
            raise self.damaged(f"the tensor {name} is empty, shape {list(shape)}")
        try:
            kind = self.gguf.GGMLQuantizationType(number)
            block, block_bytes = self.gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as error:
            raise ModelFileError(
                f"{self.path}: the tensor {name} has the unknown type number {number}"
            ) from error
        if shape[-1] % block:
            raise self.damaged(
                f"a row of the {kind.name} tensor {name} has {shape[-1]} numbers, "
                f"not a multiple of {block}"
            )
        return _Described(name, shape, kind.name, shape[-1] // block * block_bytes, offset)


def _place(
    header: _Header, described: list[_Described], metadata: Mapping[str, Any]
) -> dict[str, GGUFTensor]:
    """The mapped bytes of each tensor; it must lie in the file, aligned, apart from the others."""
    alignment = metadata.get("general.alignment", header.gguf.GGUF_DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise header.damaged(f"general.alignment must be a power of two from 8, not {alignment!r}")
    start = header.at + -header.at % alignment
    tensors: dict[str, GGUFTensor] = {}
    end_of_last, last = 0, ""
    for entry in sorted(described, key=attrgetter("offset")):
        if entry.name in tensors:
            raise header.damaged(f"the tensor {entry.name} appears twice")
        if entry.offset % alignment:
            raise header.damaged(f"the tensor {entry.name} is not aligned to {alignment} bytes")
        if entry.offset < end_of_last:
            raise header.damaged(f"the tensors {last} and {entry.name} overlap")
        begin = start + entry.offset
        if begin + entry.n_bytes > header.size:
            raise ModelFileError(
                f"{header.path} is truncated or damaged: the tensor {entry.name} ends at byte "
                f"{begin + entry.n_bytes}, the file has {header.size}"
            )
        rows = header.data[begin : begin + entry.n_bytes]
        tensors[entry.name] = GGUFTensor(
            entry.name,
            entry.shape,
            entry.type_name,
            rows.reshape(*entry.shape[:-1], entry.row_bytes),
        )
        end_of_last, last = entry.offset + entry.n_bytes, entry.name
    return tensors
