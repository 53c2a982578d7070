"""Chat templates: a conversation into the text, and the control tokens, that a model expects."""
