"""Pre-tokenizers: a normalised text into the words that the model reads."""
