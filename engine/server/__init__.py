"""The REST API: OpenAI's, on one engine."""

from engine.server.app import build_app
from engine.server.serve import serve
from engine.server.settings import Settings

__all__ = ["Settings", "build_app", "serve"]
