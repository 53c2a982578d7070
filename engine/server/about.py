"""What there is to know about the server: its model, its health, its metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response

from engine.server.answer import AtDesk

router = APIRouter()


@router.get("/health")
async def health() -> Response:
    """Whether the process answers."""
    return JSONResponse({"status": "ok"})


@router.get("/ready")
async def ready(desk: AtDesk) -> Response:
    """Whether requests are taken: 503 while the server starts or stops."""
    if desk.present.closed is not None:
        raise desk.present.closed()
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(desk: AtDesk) -> Response:
    """For Prometheus."""
    return Response(desk.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models")
async def models(desk: AtDesk) -> Response:
    """The model that is served."""
    return JSONResponse({"object": "list", "data": [desk.model]})


@router.get("/v1/models/{model:path}")
async def one_model(model: str, desk: AtDesk) -> Response:
    """The same, by its name."""
    desk.check_model(model)
    return JSONResponse(desk.model)
