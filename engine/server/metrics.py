"""What an operator watches: counts, times, and the state of the cache, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from engine.server.frontend import Frontend

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0)
_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """One registry of its own for each server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.prompt_tokens = Counter(
            "lockstep_prompt_tokens", "Tokens of prompts that were answered.", registry=registry
        )
        self._generated_tokens = Counter(
            "lockstep_generated_tokens", "Tokens that were generated.", registry=registry
        )
        self._first_token = Histogram(
            "lockstep_time_to_first_token_seconds",
            "From when a request was taken in to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self._next_token = Histogram(
            "lockstep_time_per_output_token_seconds",
            "From one token of an answer to its next.",
            buckets=_TOKEN_SECONDS,
            registry=registry,
        )
        self._requests = Histogram(
            "lockstep_request_seconds",
            "From a request's first byte to the last of its answer; status 499 is a client that left.",
            ("endpoint", "status"),
            buckets=_SECONDS,
            registry=registry,
        )

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """Counts one that is over. An address that there is not is `other`, whatever it says."""
        self._requests.labels(endpoint, str(status)).observe(seconds)

    def token(self, seconds: float, first: bool) -> None:
        """Counts one that was generated, so long after the request or after the token before."""
        (self._first_token if first else self._next_token).observe(seconds)
        self._generated_tokens.inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class State(Collector):
    """What is asked of the engine when somebody looks."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend

    def collect(self) -> Iterable[Metric]:
        frontend, cache = self._frontend, self._frontend.engine.pages
        for name, about, value in (
            ("requests_running", "Answers that take part in forward passes.", frontend.running),
            ("requests_waiting", "Answers that were asked for and do not run.", frontend.waiting),
            ("cache_blocks_free", "Blocks of the KV cache that can be had.", cache.pool.available),
            ("cache_blocks_total", "Blocks of the KV cache.", cache.pool.n),
        ):
            yield GaugeMetricFamily(f"lockstep_{name}", about, value)
        for name, about, value in (
            ("prefix_hit_tokens", "Tokens of prompts that the cache knew.", cache.hits),
            ("prefix_miss_tokens", "Tokens of prompts that had to be computed.", cache.misses),
        ):
            yield CounterMetricFamily(f"lockstep_{name}", about, value)
