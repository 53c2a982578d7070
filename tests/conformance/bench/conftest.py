"""What the bench's tests share: a way to run a command."""

from __future__ import annotations

from tests.cli.conftest import call

__all__ = ["call"]
