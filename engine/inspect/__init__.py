"""The data path made visible: what becomes of one prompt, as a document and as a page."""

from engine.inspect.gather import inspected
from engine.inspect.page import inspect_page, page

__all__ = ["inspect_page", "inspected", "page"]
