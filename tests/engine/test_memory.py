"""What a process does with memory that it has freed: an engine's keeps it for the next pass."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from conformance.golden import REPOSITORY_GOLDENS
from engine import Engine
from engine.memory import ENVIRONMENT

PAGES = 16 * 2**20 // 4096  # of a tensor
#: Prints the page faults of making four tensors for the third time, after an engine was loaded.
FAULTS = f"""
import resource, torch
from engine import Engine

Engine.load({str(REPOSITORY_GOLDENS / "llama-gqa")!r})
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    some = [torch.ones({PAGES} * 1024) for _ in range(4)]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del some
print(after - before)
"""


def faults(environment: dict[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is asked")
def test_what_is_freed_is_kept_unless_the_environment_says_otherwise() -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    kept, mapped = faults(plain), faults({**plain, "MALLOC_MMAP_THRESHOLD_": "1048576"})
    assert mapped > 4  # one for a tensor at least, however large pages are
    assert kept < mapped / 10


def test_what_is_kept_is_given_back_before_a_cache_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine.load(REPOSITORY_GOLDENS / "llama-gqa")
    given: list[bool] = []
    monkeypatch.setattr("engine.cache.cache.give_back", lambda: given.append(True))
    monkeypatch.setattr("engine.cache.cache.free_bytes", lambda device: 10**9 if given else 0)
    engine.new_cache(8)
    assert given == [True]
