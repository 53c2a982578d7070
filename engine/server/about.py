"""What there is to know about the server: its model, its health, its metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from engine.server.answer import FrontendDep

router = APIRouter()


@router.get("/health")
async def health() -> Response:
    """Whether the process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/ready")
async def ready(frontend: FrontendDep) -> Response:
    """Whether requests are taken: 503 while the server starts or stops."""
    if frontend.in_flight.closed is not None:
        raise frontend.in_flight.closed()
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(frontend: FrontendDep) -> Response:
    """For Prometheus."""
    return Response(frontend.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models")
async def models(frontend: FrontendDep) -> Response:
    """The model that is served."""
    return JSONResponse({"object": "list", "data": [frontend.model]})


@router.get("/v1/models/{model:path}")
async def one_model(model: str, frontend: FrontendDep) -> Response:
    """The same, by its name."""
    frontend.check_model(model)
    return JSONResponse(frontend.model)
