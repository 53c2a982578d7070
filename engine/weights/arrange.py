"""Carries out the verbs of a layout: a checkpoint's tensors to one parameter.

What only picks and turns stays a view of the mapped file; numbers are converted last, so nothing is
converted that the parameter does not hold. On meta tensors the same code gives the shape alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from engine.families.family import (
    Add,
    Deinterleave,
    Either,
    Microscaled,
    Rename,
    Split,
    Stack,
    Tie,
    Transpose,
    Verb,
)
from engine.weights import microscaled
from engine.weights.tensors import Stored

_Read = Callable[[str, torch.dtype], Tensor]


def arrange(verb: Verb, stored: Stored, dtype: torch.dtype) -> Tensor:
    """The parameter's values in `dtype`; an Either must have been decided.

    Raises ValueError, RuntimeError or IndexError where a tensor's shape does not allow it.
    """
    kept = _is_view(verb)
    value = _numbers(_parts(verb, partial(stored, kept=kept), dtype), dtype)
    if kept or value.is_meta or value.untyped_storage().nbytes() == value.nbytes:
        return value
    return value.clone()  # without the rest of the tensor that it was cut from


def _is_view(verb: Verb) -> bool:
    """Whether strides can say it, so that matrix products take it as it lies in the file."""
    match verb:
        case Rename() | Tie():
            return True
        case Transpose(of) | Split(of):
            return _is_view(of)
        case _:
            return False


def _parts(verb: Verb, read: _Read, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The numbers as the file has them; two tensors, blocks and scales, where they are microscaled.

    Axes before the last are the same in both, so they are picked from before they are decoded.
    """
    match verb:
        case Rename(source) | Tie(source):
            return (read(source, dtype),)
        case Microscaled(blocks, scales):
            return read(blocks, torch.uint8), read(scales, torch.uint8)
        case Split(Deinterleave(of, 1, paired), start, stop, axis) if paired == axis:
            parts = _parts(of, read, dtype)
            return tuple(_of_every_second(part, start, stop, axis) for part in parts)
        case Split(of, start, stop, axis):
            parts = _parts(of, read, dtype)
            return tuple(part.narrow(axis, start, stop - start) for part in parts)
        case Deinterleave(of, groups, axis):
            return tuple(deinterleave(part, groups, axis) for part in _parts(of, read, dtype))
        case Transpose(of):
            parts = _parts(of, read, dtype)
            return ((parts[0] if len(parts) == 1 else _numbers(parts, dtype)).mT,)
        case Add(of, number):  # before the numbers are rounded, as the 1 may outweigh them
            value = _numbers(_parts(of, read, torch.float32), torch.float32)
            # torch takes seconds to prepare for a sum of numbers that are not there.
            return (value if value.is_meta else value + number,)
        case Stack(of, count):
            return (_stacked(of, count, read, dtype),)
        case Either():
            raise TypeError("an Either is decided before anything is read")


def _numbers(parts: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    if len(parts) == 1:
        return parts[0].to(dtype)
    blocks, scales = parts
    return microscaled.decode(blocks, scales, dtype)


def _stacked(of: Verb, count: int, read: _Read, dtype: torch.dtype) -> Tensor:
    """Each expert's numbers in their place in one allocation, so that never two copies are alive."""
    for e in range(count):
        value = _numbers(_parts(of_expert(of, e), read, dtype), dtype)
        if e == 0:
            stacked = torch.empty(count, *value.shape, dtype=dtype, device=value.device)
        if value.shape != stacked.shape[1:]:
            raise ValueError(f"expert {e} is {list(value.shape)}, not {list(stacked.shape[1:])}")
        stacked[e] = value
    return stacked


def deinterleave(x: Tensor, groups: int, axis: int = 0) -> Tensor:
    """Along `axis`, each of `groups` from pairs (2j, 2j+1) to halves (j, j + n/2)."""
    halves: Tensor = x.unflatten(axis, (groups, -1, 2)).movedim(axis + 2, axis + 1)
    return halves.flatten(axis, axis + 2)


def _of_every_second(x: Tensor, start: int, stop: int, axis: int) -> Tensor:
    """`deinterleave(x, 1)[start:stop]` without the copy: every second place, from 0 or from 1."""
    paired: Tensor = x.unflatten(axis, (-1, 2))
    half = paired.shape[axis]
    if start < half < stop:
        raise ValueError(f"{start} to {stop} is part of both halves of {half}")
    odd = int(start >= half)
    return paired.select(axis + 1, odd).narrow(axis, start - odd * half, stop - start)


def named(verb: Verb, name: Callable[[str], str]) -> Verb:
    """The verb with each tensor's name replaced by `name` of it."""
    match verb:
        case Rename(source) | Tie(source):
            return replace(verb, source=name(source))
        case Microscaled(blocks, scales):
            return Microscaled(name(blocks), name(scales))
        case Either(options):
            return Either(tuple(named(option, name) for option in options))
        case _:
            return replace(verb, of=named(verb.of, name))


def of_expert(verb: Verb, e: int) -> Verb:
    return named(verb, lambda source: source.replace("{e}", str(e)))


def sources(verb: Verb) -> Iterator[str]:
    """The tensors that a verb reads; of each option, where it is undecided."""
    match verb:
        case Rename(source) | Tie(source):
            yield source
        case Microscaled(blocks, scales):
            yield from (blocks, scales)
        case Either(options):
            for option in options:
                yield from sources(option)
        case Stack(of, count):
            for e in range(count):
                yield from sources(of_expert(of, e))
        case _:
            yield from sources(verb.of)
