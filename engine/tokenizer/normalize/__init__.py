"""Normalizers: what is done to the characters of a text before it is cut into words."""
