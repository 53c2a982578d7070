"""The data path made visible: what becomes of one prompt, as a document and as a page."""

from engine.inspect.gather import inspected

__all__ = ["inspected"]
