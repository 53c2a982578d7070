"""The reference: the only room that transformers and tokenizers may enter."""
