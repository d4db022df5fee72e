"""Errors a user can act on."""


class UserError(Exception):
    """Input or configuration that the user can correct.

    The message says what is wrong, where (file and line, or parameter key) and what is allowed;
    the command line prints it alone, without a traceback.
    """


class DataError(UserError):
    """A task's files are missing, malformed or cannot support what is asked of them."""


class ParameterError(UserError):
    """A parameter is unknown, out of range or at odds with another one."""


class ProvenanceError(UserError):
    """Two artifacts do not belong together, for example vectors of another model."""


class TrainingError(UserError):
    """Training cannot go on, for example because a loss is no longer a number."""


class GateError(UserError):
    """A finished run misses a bar that the user has set; everything it made is saved."""


def user_error(error: BaseException) -> UserError | None:
    """Return the error a user can act on behind an exception, if there is one."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, UserError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
