"""Exceptions: one class per status of the C library."""


class Error(Exception):
    """A call into libkvlease that failed. The text is the library's: it begins with the argument or key that it is about."""

    status: int = 0  # KVL_ERR_*
    name: str = "KVL_OK"  # of the status


class Full(Error):
    """No room for new work now: nothing changed, call again after a step."""

    status, name = -1, "KVL_ERR_FULL"


class Invalid(Error, ValueError):
    """An argument is wrong: nothing was changed."""

    status, name = -2, "KVL_ERR_INVALID"


class Stale(Error):
    """The handle's object has ended. For cancel, revoke and untrack that is the normal race with an event on its way."""

    status, name = -3, "KVL_ERR_STALE"


class Busy(Error):
    """Another thread is inside, or work is still in flight."""

    status, name = -4, "KVL_ERR_BUSY"


class Forked(Error):
    """This process is a fork of one that had opened a context: exec, or open after the fork only."""

    status, name = -5, "KVL_ERR_FORKED"


class Poisoned(Error):
    """The core is broken: every row is fenced, and poll tells the ends."""

    status, name = -6, "KVL_ERR_POISONED"


class Unavailable(Error):
    """A library or symbol is missing: the text names it."""

    status, name = -7, "KVL_ERR_UNAVAILABLE"


class Closed(Error):
    """The context is draining or closed."""

    status, name = -8, "KVL_ERR_CLOSED"


class ConfigError(Error, ValueError):
    """A key or value of the configuration is wrong: the text names it."""

    status, name = -9, "KVL_ERR_CONFIG"


class NoMemory(Error, MemoryError):
    """The system refused memory."""

    status, name = -10, "KVL_ERR_NOMEM"


class TransportError(Error):
    """The transport refused: the text says what."""

    status, name = -11, "KVL_ERR_TRANSPORT"


class Space(Error):
    """A buffer is too small. The package makes its buffers large enough: not seen by users."""

    status, name = -12, "KVL_ERR_SPACE"


class WrongProducer(Error):
    """The request belongs to another producer."""

    status, name = -13, "KVL_ERR_PRODUCER"


class Timeout(Error, TimeoutError):
    """The time given has passed."""

    status, name = -14, "KVL_ERR_TIMEOUT"


# Entry -status. The extension takes its exceptions from here.
BY_STATUS = (Error, Full, Invalid, Stale, Busy, Forked, Poisoned, Unavailable, Closed, ConfigError, NoMemory, TransportError,
             Space, WrongProducer, Timeout)
