"""The one kind of error that is the user's to mend: a bad request, a bad file or a missing tool.

Its message is one clear sentence that says what is wrong and, where it can, what to do; the
command line prints it on standard error and exits with status 2.
"""


class LockstepError(Exception):
    """The request or the environment is at fault, never a verdict on an engine."""


class ModelFileError(LockstepError):
    """A model folder, checkpoint or tokenizer file is missing, damaged or unsupported."""


class RequestError(LockstepError):
    """A prompt, id or parameter that cannot be served as asked."""


class TooLongError(RequestError):
    """A prompt that leaves no room for an answer."""


class CacheFullError(RequestError):
    """A cache has no place for these tokens now; it may have one when another sequence is closed."""
