"""Decoders: tokens back into text, whole or as they come."""
