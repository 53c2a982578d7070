"""/inspect: a prompt followed from text to text in the browser, the live form of `lockstep inspect`.

The form at /inspect says nothing of the model and is open to all. What it asks of /v1/inspect needs the
key, counts as a request, and has bounds of its own, as it costs several times what an answer does.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import HTMLResponse, Response

from engine.errors import TooLongError
from engine.generate import SamplingParams
from engine.inspect import inspect_page
from engine.server.answer import FrontendDep
from engine.server.body import StrictRoute
from engine.server.frontend import Frontend
from engine.server.schema import Strict

router = APIRouter(include_in_schema=False)
asking = APIRouter(route_class=StrictRoute, include_in_schema=False)

MOST_TOKENS = 2048  # of a prompt
MOST_STEPS = 32
#: What a page may do that shows a text of anybody's: its own script and style, and ask where it comes from.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'; frame-src blob:; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store"}


class InspectRequest(Strict):
    """A prompt, and how its answer is chosen."""

    prompt: str = Field(min_length=1)
    max_tokens: int = Field(8, ge=1, le=MOST_STEPS)
    temperature: float = Field(0.0, ge=0)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=0)
    parse_special: bool = False


@router.get("/inspect")
async def form() -> Response:
    """The form."""
    page = files("engine.inspect").joinpath("live.html").read_text(encoding="utf-8")
    return HTMLResponse(page, headers=HEADERS)


@asking.post("/v1/inspect")
async def inspect(asked: InspectRequest, frontend: FrontendDep) -> Response:
    """The page of a prompt."""
    page = await frontend.placed(lambda: _page(frontend, asked), "inspections")
    return HTMLResponse(page, headers=HEADERS)


def _page(frontend: Frontend, asked: InspectRequest) -> str:
    tokens = len(frontend.engine.encode(asked.prompt, asked.parse_special))
    if tokens > MOST_TOKENS:
        raise TooLongError(
            f"the prompt has {tokens} tokens, and prompts of at most {MOST_TOKENS} are inspected here; "
            "lockstep inspect takes longer ones"
        )
    params = SamplingParams(
        **asked.model_dump(exclude={"prompt", "parse_special"}, exclude_none=True)
    )
    return inspect_page(frontend.engine, asked.prompt, params, parse_special=asked.parse_special)


router.include_router(asking)
