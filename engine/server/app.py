"""The application: who is asked at which address, and what is around all of them."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from engine.errors import LockstepError
from engine.generate import Engine
from engine.server import about, chat, completions, inspect, responses, text
from engine.server.errors import of_http, of_validation
from engine.server.exchange import ExchangeMiddleware
from engine.server.frontend import Frontend
from engine.server.security import Guard
from engine.server.settings import Settings

_ROUTERS = [module.router for module in (about, chat, completions, responses, text, inspect)]

_ERROR = {
    "description": "What is wrong, in one sentence.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": {"type": "string"},
                            "type": {"type": "string"},
                            "param": {"type": ["string", "null"]},
                            "code": {"type": ["string", "null"]},
                        },
                    }
                },
            }
        }
    },
}


def build_app(engine: Engine, settings: Settings) -> FastAPI:
    """The API of one engine, whose cache must be paged; RequestError else."""
    frontend = Frontend(engine, settings)
    app = FastAPI(
        title="Lockstep",
        summary="The OpenAI API for text, by one model.",
        docs_url="/docs" if settings.docs else None,
        openapi_url="/openapi.json" if settings.docs else None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        responses={"4XX": _ERROR, "5XX": _ERROR},
    )
    app.state.frontend = frontend
    for router in _ROUTERS:
        app.include_router(router)
    _handle_errors(app, frontend)
    endpoints = {getattr(route, "path", "") for router in _ROUTERS for route in router.routes}
    # The last that is added is the first that a request meets.
    app.add_middleware(
        ExchangeMiddleware,
        settings,
        Guard(settings.api_key),
        frontend.in_flight,
        frontend.metrics,
        endpoints,
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],  # OpenAI's client adds half a dozen of its own
            expose_headers=["Retry-After"],
        )
    return app


def _handle_errors(app: FastAPI, frontend: Frontend) -> None:
    """Every error has the API's shape."""

    @app.exception_handler(StarletteHTTPException)
    async def of_framework(request: Request, error: StarletteHTTPException) -> Response:
        return of_http(error).response

    @app.exception_handler(RequestValidationError)
    async def of_schema(request: Request, error: RequestValidationError) -> Response:
        return of_validation(error.errors()).response

    @app.exception_handler(LockstepError)
    async def of_engine(request: Request, error: LockstepError) -> Response:
        return frontend.error(error).response
