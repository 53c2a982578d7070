"""Reads what stands beside a tokenizer.json: special tokens by role, and chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import ModelFileError
from engine.files import read_json, read_text
from engine.tokenizer.stages import Surroundings


def surroundings_from_folder(folder: Path) -> Surroundings:
    """Return what tokenizer_config.json, special_tokens_map.json and the chat templates say.

    As in transformers, templates in files of their own (chat_template.jinja and those in
    additional_chat_templates, called by their names) take the place of all in the config.
    """
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= read_json(folder / name)
    texts = {key: _content(value) for key, value in config.items() if key.endswith("_token")}
    files = {file.stem: file for file in folder.glob("additional_chat_templates/*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    templates = {name: read_text(file) for name, file in sorted(files.items())} or _chat_templates(
        config.get("chat_template"), folder / "tokenizer_config.json"
    )
    return Surroundings({k: v for k, v in texts.items() if v is not None}, templates)


def _content(token: Any) -> str | None:
    """Return the text of a token that is written as a string or as an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _chat_templates(spec: Any, path: Path) -> dict[str, str]:
    match spec:
        case None:
            return {}
        case str():
            return {"default": spec}
        case dict() if all(isinstance(text, str) for text in spec.values()):
            return dict(spec)
        case list():
            try:
                return {str(entry["name"]): str(entry["template"]) for entry in spec}
            except (TypeError, KeyError):
                pass
    raise ModelFileError(f"{path}: chat_template must be a string or a list of named templates")
