"""/tokenize and /detokenize: texts to ids and back, as the model is given them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import Field, model_validator
from starlette.responses import Response

from engine.errors import RequestError
from engine.generate.checks import shown
from engine.server.answer import FrontendDep
from engine.server.body import StrictRoute
from engine.server.conversation import Message
from engine.server.document import document
from engine.server.frontend import Frontend
from engine.server.schema import Ids, Strict, wrong

router = APIRouter(route_class=StrictRoute)


class TokenizeRequest(Strict):
    """A text, or a conversation in the model's chat template.

    Special tokens that a text spells out are plain text, unless `parse_special` asks for them.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] = Field([])
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    parse_special: bool = False
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (not self.messages):
            raise wrong("prompt", "or messages must be given, one of them")
        return self


class DetokenizeRequest(Strict):
    model: str | None = None
    tokens: Ids
    skip_special_tokens: bool = False


@router.post("/tokenize")
async def tokenize(asked: TokenizeRequest, frontend: FrontendDep) -> Response:
    """The ids of a text, and how many they are beside the most that the model can read."""
    frontend.check_model(asked.model)
    return await frontend.prepared(lambda: document(_tokens(frontend, asked)))


@router.post("/detokenize")
async def detokenize(asked: DetokenizeRequest, frontend: FrontendDep) -> Response:
    """The text of some ids."""
    frontend.check_model(asked.model)
    return await frontend.prepared(lambda: document({"prompt": _text(frontend, asked)}))


def _tokens(frontend: Frontend, asked: TokenizeRequest) -> dict[str, Any]:
    tokenizer = frontend.speaking
    if asked.prompt is None:
        messages = [message.for_template() for message in asked.messages]
        ids = tokenizer.encode_chat(
            messages, asked.add_generation_prompt, parse_special=asked.parse_special
        )
    elif asked.add_special_tokens:
        ids = tokenizer.encode_prompt(asked.prompt, asked.parse_special)
    else:
        ids = tokenizer.encode(asked.prompt, False, parse_special=asked.parse_special)
    said = {"tokens": ids, "count": len(ids), "max_model_len": frontend.window}
    if asked.return_token_strs:
        said["token_strs"] = [tokenizer.id_to_token(token) for token in ids]
    return said


def _text(frontend: Frontend, asked: DetokenizeRequest) -> str:
    tokenizer = frontend.speaking
    for unknown in (token for token in asked.tokens if tokenizer.id_to_token(token) is None):
        raise RequestError(f"tokens: the model's tokenizer has no token of id {shown(unknown)}")
    return tokenizer.decode(asked.tokens, skip_special_tokens=asked.skip_special_tokens)
