"""Faults of the chat template's rendering."""

from __future__ import annotations

from functools import partial

from conformance.mutants.mutant import Mutant, fault

_fault = partial(fault, family="tokenizer")

CHAT: tuple[Mutant, ...] = (
    _fault(
        "tok-chat-untrimmed",
        "leaves the lines that hold a template's blocks",
        "vllm-project/vllm#27515",
        "tokenizer/chat.py",
        "trim_blocks=True, lstrip_blocks=True",
        "trim_blocks=False, lstrip_blocks=True",
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-indented",
        "leaves the white space before a template's blocks",
        "vllm-project/vllm#27515",
        "tokenizer/chat.py",
        "trim_blocks=True, lstrip_blocks=True",
        "trim_blocks=True, lstrip_blocks=False",
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-html-escapes",
        "writes tools with HTML escapes, as jinja2 does on its own",
        "transformers, chat templates",
        "tokenizer/chat.py",
        'environment.filters["tojson"] = _to_json',
        "pass",
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-none-shown",
        "shows a template fields that are None",
        "transformers, chat templates",
        "tokenizer/chat.py",
        "{key: value for key, value in message.items() if value is not None}",
        "dict(message)",
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-names-leak",
        "lets what a generation block sets be seen behind it",
        "transformers, chat templates",
        "tokenizer/chat.py",
        "return nodes.Scope(body).set_lineno(line)",
        "return nodes.If(nodes.Const(True), body, [], []).set_lineno(line)",
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-no-loop-controls",
        "does not know break and continue",
        "transformers, chat templates",
        "tokenizer/chat.py",
        "extensions=[_Generation, loopcontrols]",
        "extensions=[_Generation]",
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-prompt-always",
        "asks for the assistant's words even where the caller does not",
        "transformers, chat templates",
        "tokenizer/chat.py",
        'variables["add_generation_prompt"] = add_generation_prompt',
        'variables["add_generation_prompt"] = True',
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-special-tokens-unknown",
        "does not tell the template how BOS and EOS are written",
        "sgl-project/sglang#888",
        "tokenizer/chat.py",
        '"documents": None, **self._special_tokens, **extra}',
        '"documents": None, **extra}',
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-tools-ignored",
        "takes the ordinary template for a conversation with tools",
        "transformers, chat templates",
        "tokenizer/chat.py",
        'name = "tool_use" if extra.get("tools") and "tool_use" in self._templates else "default"',
        'name = "default"',
        "tokenizer.chat",
    ),
    _fault(
        "tok-chat-ascii",
        "writes letters beyond ASCII as escapes",
        "transformers, chat templates",
        "tokenizer/chat.py",
        "ensure_ascii: bool = False",
        "ensure_ascii: bool = True",
        "tokenizer.chat",
    ),
)
