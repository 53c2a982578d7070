"""The README's examples of the server, as they stand there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.serving import NAME, Client, strict_json

README = Path(__file__).parents[2] / "README.md"
ADDRESS = "http://127.0.0.1:8000"


def examples() -> list[str]:
    """The curl commands of the README, each with the lines that it goes on in."""
    lines = README.read_text(encoding="utf-8").splitlines()
    found = []
    for i, line in enumerate(lines):
        if match := re.match(r" +(?:\$ )?(curl .*)", line):
            command = match[1]
            while command.endswith("\\") or command.count("'") % 2:
                i += 1
                command = command.removesuffix("\\") + "\n" + lines[i]
            found.append(command)
    return found


def test_there_are_examples_of_what_matters() -> None:
    text = "\n".join(examples())
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert ADDRESS + path in text


@pytest.mark.parametrize("command", examples())
def test_an_example_works(server: Client, command: str) -> None:
    """On a tiny model in the place of the one that is named."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    command = command.replace(ADDRESS, server.url).replace("smollm2-135m", NAME)
    assert server.url in command
    done = subprocess.run(
        ["bash", "-c", command.replace("curl ", "curl --fail-with-body --no-progress-meter ", 1)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done
    if "/metrics" in command:
        assert "lockstep_requests_running" in done.stdout
    elif '"stream": true' in command:
        events = [event.removeprefix("data: ") for event in done.stdout.split("\n\n") if event]
        assert events[-1] == "[DONE]"
        assert all(json.loads(event)["choices"] is not None for event in events[:-1])
    else:
        strict_json(done.stdout)
