"""A readable LLM inference engine by hand on PyTorch."""
