"""Chat templates: rendered as transformers renders them, encoded without one token more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelFileError, RequestError
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import added, definition, ours

HELLO = [{"role": "user", "content": "hello"}]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief, naïve & <b>bold</b>."},
    {"role": "user", "content": " What's 1 < 2?\n"},
    {"role": "assistant", "content": "True.", "tool_calls": None},
    {"role": "user", "content": "Why?"},
]
TOOLS = [{"type": "function", "function": {"name": "größe", "description": "a & b < c"}}]


def with_template(template: str, **tokens: str) -> Tokenizer:
    special_tokens = {f"{name}_token": token for name, token in tokens.items()}
    return ours(definition(), chat_templates={"default": template}, special_tokens=special_tokens)


def test_blocks_leave_no_lines_and_loops_can_be_left() -> None:
    tokenizer = with_template(
        "{% for m in messages %}\n    {% if loop.index > 1 %}\n    {% break %}\n    {% endif %}\n"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}\n"
    )
    assert tokenizer.render_chat(TALK) == f"system: {TALK[0]['content']}\n"


def test_json_is_written_without_html_escapes() -> None:
    assert with_template("{{ tools | tojson }}").render_chat(HELLO, tools=TOOLS) == (
        json.dumps(TOOLS, ensure_ascii=False)
    )


def test_special_tokens_tools_and_documents_are_always_there() -> None:
    tokenizer = with_template(
        "{{ bos_token }}|{{ eos_token }}|{{ tools is none }}|{{ documents is none }}",
        bos="<s>",
    )
    assert tokenizer.render_chat(HELLO) == "<s>||True|True"


def test_a_field_that_is_none_counts_as_absent() -> None:
    tokenizer = with_template("{{ 'tool_calls' in messages[0] }}")
    assert tokenizer.render_chat([{"role": "user", "content": "x", "tool_calls": None}]) == "False"


def test_generation_marks_show_nothing_and_keep_their_variables() -> None:
    template = "{% generation %}{% set x = 1 %}a{% endgeneration %}{{ x is defined }}"
    assert with_template(template).render_chat(HELLO) == "aFalse"


def test_the_date_is_there_for_templates_that_ask() -> None:
    assert with_template("{{ strftime_now('%Y') | int > 2000 }}").render_chat(HELLO) == "True"


def test_what_the_template_refuses_is_the_requests_fault() -> None:
    tokenizer = with_template("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(RequestError, match="roles must alternate"):
        tokenizer.render_chat(HELLO)
    with pytest.raises(RequestError, match="refuses"):
        with_template("{{ messages[0].content + 1 }}").render_chat(HELLO)
    with pytest.raises(RequestError, match="mapping"):
        with_template("x").render_chat(["hello"])  # type: ignore[list-item]
    with pytest.raises(RequestError, match="at least one message"):
        with_template("x").render_chat([])
    for options in ({"tools": [len]}, {"documents": ["x"]}, {"extra": {"now": object()}}):
        with pytest.raises(RequestError, match=r"mapping|JSON's types"):
            with_template("x").render_chat(HELLO, **options)


def test_a_template_that_is_no_jinja_is_the_files_fault() -> None:
    with pytest.raises(ModelFileError, match="no valid jinja"):
        with_template("{% if %}").render_chat(HELLO)
    with pytest.raises(RequestError, match="of this request is no valid jinja"):
        with_template("x").render_chat(HELLO, chat_template="{% if %}")


def test_no_template_is_said_so() -> None:
    with pytest.raises(RequestError, match="no chat template"):
        ours(definition()).render_chat(HELLO)


def test_tools_choose_the_template_for_tools() -> None:
    templates = {"default": "plain", "tool_use": "tools"}
    tokenizer = ours(definition(), chat_templates=templates)
    assert tokenizer.render_chat(HELLO) == "plain"
    assert tokenizer.render_chat(HELLO, tools=TOOLS) == "tools"
    assert tokenizer.render_chat(HELLO, tools=[]) == "tools"
    assert tokenizer.render_chat(HELLO, tools=TOOLS, chat_template="default") == "plain"
    assert tokenizer.render_chat(HELLO, chat_template="{{ 1 + 1 }}") == "2"


def test_a_chat_gets_bos_from_its_template_alone() -> None:
    """The template has written it; a post-processor that adds it again makes two."""
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    file = definition(
        added_tokens=[added("<s>", 256, special=True)],
        post_processor={
            "type": "TemplateProcessing",
            "single": [bos, text],
            "pair": [bos, text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}},
        },
    )
    templates = {"default": "{{ bos_token }}{{ messages[0].content }}"}
    tokenizer = ours(file, chat_templates=templates, special_tokens={"bos_token": "<s>"})
    assert tokenizer.encode_chat([{"role": "user", "content": "A"}]) == [256, 0x41]
    assert tokenizer.encode("A") == [256, 0x41]


def test_the_files_of_a_folder_are_read_in_their_order(tmp_path: Path) -> None:
    """chat_template.jinja comes before tokenizer_config.json, which comes before the older map."""

    def write(name: str, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        (tmp_path / name).write_text(text, encoding="utf-8")

    write("tokenizer.json", definition(added_tokens=[added("<s>", 256), added("</s>", 257)]))
    write("special_tokens_map.json", {"bos_token": "<s>", "eos_token": {"content": "no"}})
    assert Tokenizer.load(tmp_path).bos_id == 256
    write("tokenizer_config.json", {"eos_token": {"content": "</s>"}, "chat_template": "config"})
    loaded = Tokenizer.load(tmp_path)
    assert (loaded.bos_id, loaded.eos_ids) == (256, (257,))
    assert loaded.render_chat(HELLO) == "config"
    named = [{"name": "default", "template": "named"}, {"name": "tool_use", "template": "tools"}]
    write("tokenizer_config.json", {"chat_template": named, "bos_token": None})
    loaded = Tokenizer.load(tmp_path)
    assert loaded.bos_id is None
    assert loaded.render_chat(HELLO, tools=TOOLS) == "tools"
    write("chat_template.jinja", "file {{ messages[0].content }}\n")
    (tmp_path / "additional_chat_templates").mkdir()
    write("additional_chat_templates/rag.jinja", "{{ documents | length }}")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.render_chat(HELLO) == "file hello"
    assert loaded.render_chat(HELLO, tools=TOOLS) == "file hello"  # the config's are not read
    assert loaded.render_chat(HELLO, chat_template="rag", documents=[{"text": "x"}]) == "1"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "additional_chat_templates" / "rag.jinja").unlink()
    write("tokenizer_config.json", {"chat_template": 7})
    with pytest.raises(ModelFileError, match="chat_template"):
        Tokenizer.load(tmp_path)
