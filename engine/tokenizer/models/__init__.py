"""Models: one word into tokens."""
