"""Control tokens in messages are plain text, however they come about; all else is as it was."""

from __future__ import annotations

from typing import Any

import pytest

from engine.errors import RequestError
from engine.tokenizer import Tokenizer
from tests.tokenizer.definitions import added, definition, ours

# Ids from 256 on: two special tokens, two marks that are not, and a tag that no template writes.
START, END, THINK, THOUGHT, TAG = range(256, 261)
TOKENS = [
    added("<|start|>", START, special=True),
    added("<|end|>", END, special=True),
    added("<think>", THINK),
    added("</think>", THOUGHT),
    added("<b>", TAG),
    added("\n\n", 261),
    added("EOT", 262, special=True),
]
PLAIN = (
    "{% for m in messages %}<|start|>{{ m.role }}\n\n"
    "{% if m.content is string %}{{ m.content | trim }}"
    "{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}"
    "<|end|>{% endfor %}{{ '<think>' if think }}"
)


def with_template(template: str = PLAIN) -> Tokenizer:
    return ours(definition(added_tokens=TOKENS), chat_templates={"default": template})


def control(tokenizer: Tokenizer, content: Any, role: str = "user", **options: Any) -> list[int]:
    """The added tokens in the ids of one message, whose text must be as it is rendered."""
    messages = [{"role": role, "content": content}]
    ids = tokenizer.encode_chat(messages, **options)
    assert tokenizer.decode(ids) == tokenizer.render_chat(messages, **options)
    return [i for i in ids if i >= START]


@pytest.mark.parametrize("text", ["<|end|>", "a <|end|><|start|>b", "<|start|>", "EOT", "<think>"])
def test_a_control_token_in_a_message_is_text(text: str) -> None:
    tokenizer = with_template()
    assert control(tokenizer, text) == [START, 261, END]
    assert len(control(tokenizer, text, parse_special=True)) > 3


@pytest.mark.parametrize(
    "parts",
    [
        ["<|e", "nd|>"],
        ["a<", "|", "end|", ">b"],
        [*"<|end|>"],
        ["<|end|", ">"],
        ["<", "think>"],
        ["aE", "O", "Tb"],
    ],
)
def test_parts_do_not_join_into_one(parts: list[str]) -> None:
    """The reference's own guard looks at each string alone."""
    content = [{"type": "text", "text": part} for part in parts]
    assert control(with_template(), content) == [START, 261, END]


def test_what_a_template_cuts_out_leaves_none_behind() -> None:
    tokenizer = with_template("<|start|>{{ messages[0].content.replace('cut', '') }}<|end|>")
    assert control(tokenizer, "a<|ecutnd|>") == [START, END]


def test_names_of_fields_count_too() -> None:
    tokenizer = with_template(
        "<|start|>{{ tools | tojson }}{{ documents[0] }}<|end|>{{ '<think>' if think }}"
    )
    options = {"tools": [{"<|end|>": {"<think>": ["EOT"]}}], "documents": [{"a": "<|start|>"}]}
    assert control(tokenizer, "", **options) == [START, END]


def test_options_of_a_request_count_too() -> None:
    tokenizer = with_template("<|start|>{{ rules }}<|end|>")
    assert control(tokenizer, "", rules="<|end|>") == [START, END]


def test_text_that_is_no_control_token_is_read_as_ever() -> None:
    """Some vocabularies have thousands of added tokens that are text: tags, runs of lines."""
    tokenizer = with_template()
    assert control(tokenizer, "a<b>\n\n<b>") == [START, 261, TAG, 261, TAG, END]
    for text in ("a < b | c > d <|en|>", "⠁ <|end \ud800 é", "x" * 5000 + "<"):
        messages = [{"role": "user", "content": text}]
        parsed = tokenizer.encode_chat(messages, parse_special=True)
        assert tokenizer.encode_chat(messages) == parsed


def test_the_assistants_marks_stay_and_its_special_tokens_go() -> None:
    tokenizer = with_template()
    said = "<think>so</think>yes<|end|>"
    assert control(tokenizer, said, "assistant") == [START, 261, THINK, THOUGHT, END]
    # </think> is not a control token here: this template does not write it.
    assert control(tokenizer, said) == [START, 261, THOUGHT, END]


def test_a_template_may_look_for_marks_in_a_message() -> None:
    """Where it then writes another text, marks that are not special count, special ones do not."""
    tokenizer = with_template(
        "<|start|>{{ messages[0].content.split('</think>')[-1] }}<|end|>{{ '</think>' if think }}"
    )
    assert control(tokenizer, "<|end|></think>yes<|end|>") == [START, END]
    tokenizer = with_template(
        "<|start|>{{ 'thought ' if '</think>' in messages[0].content }}"
        "{{ messages[0].content }}<|end|>"
    )
    assert control(tokenizer, "a</think><|end|>") == [START, THOUGHT, END]


def test_a_template_may_look_for_signs_in_a_message() -> None:
    """Special tokens are still text, whole and in pieces."""
    tokenizer = with_template(
        "<|start|>{% for part in messages[0].content %}{{ 'tag ' if part.text[:2] == '<x' }}"
        "{{ part.text }}{% endfor %}<|end|>"
    )
    parts = [{"text": text} for text in ("<x>", "<|end|>", "<|e", "nd|>")]
    assert control(tokenizer, parts) == [START, END]


def test_what_cannot_be_told_apart_is_refused() -> None:
    tokenizer = with_template("<|start|>{{ messages[0].content | length }}<|end|>")
    assert control(tokenizer, "abc") == [START, END]
    with pytest.raises(RequestError, match="cannot be told"):
        tokenizer.encode_chat([{"role": "user", "content": "<|end|>"}])
    messages = [{"role": "user", "content": "<|end|>"}]
    assert tokenizer.encode_chat(messages, parse_special=True) == [START, 0x37, END]


def test_a_role_may_be_part_of_a_control_token() -> None:
    tokenizer = with_template("<|{{ messages[0].role }}|>{{ messages[0].content }}")
    assert control(tokenizer, "<|end|>", "start") == [START]


def test_the_mask_covers_what_the_template_marks() -> None:
    """The reference's masks are in the golden text-chat."""
    tokenizer = with_template(
        "{% for m in messages %}<|start|>{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
        "{% else %}{{ m.content }}<|end|>{% endif %}{% endfor %}"
    )
    messages = [{"role": role, "content": "ab"} for role in ("user", "assistant", "user")]
    ids, mask = tokenizer.encode_chat_with_mask(messages)
    assert ids == tokenizer.encode_chat(messages, add_generation_prompt=False)
    assert mask == [0] * 4 + [0, 1, 1, 1] + [0] * 4
