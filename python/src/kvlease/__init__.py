"""kvlease: leases, heartbeats and fenced reads of KV cache blocks between inference engines.

Importing this package loads nothing native. The first use of a name that needs libkvlease.so does, and the Go core comes with the
first Context. KVLEASE_LIB names another libkvlease.so than the one beside this file, and KVLEASE_CORE another core.
"""

import importlib
import os

from ._region import Region
from .errors import (Busy, Closed, ConfigError, Error, Forked, Full, Invalid, NoMemory, Poisoned, Space, Stale, Timeout, TransportError,
                     Unavailable, WrongProducer)

__all__ = [
    "Busy", "Closed", "ConfigError", "Context", "Error", "Event", "Forked", "Full", "Invalid", "NoMemory", "Poisoned", "Producer",
    "Region", "Remote", "Space", "Stale", "Timeout", "TransportError", "Unavailable", "WrongProducer", "abi_version", "params_read",
    "status_name", "version"
]


def _load():
    if path := os.environ.get("KVLEASE_LIB"):
        import ctypes
        ctypes.CDLL(path)  # the loader takes it for the one that the extension asks for: both have one soname
    try:
        return importlib.import_module("._kvlease", __name__)
    except ModuleNotFoundError as e:
        here = os.path.dirname(__file__)
        raise ImportError(f"{here} has no extension _kvlease: it is the source. `make python` makes one for PYTHONPATH=build/python, `make wheel` a wheel",
                          name=e.name) from None


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    native = _load()
    globals().update({key: value for key, value in vars(native).items() if not key.startswith("_")})
    try:
        return globals()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__():
    return sorted({*globals(), *__all__})
