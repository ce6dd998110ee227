"""Engines of a test: contexts over the loopback transport, each with a cache of its own, stepped by hand."""

import ctypes
import itertools
import mmap
import os
import select
import time

import kvlease

BLOCKS, BLOCK = 64, 512
_names = itertools.count()


def unique(name):
    """Agents of the loopback transport find each other by name: no two tests share one."""
    return f"{name}-{next(_names)}"


class Cache:
    """Memory for BLOCKS blocks."""

    def __init__(self):
        self.memory = mmap.mmap(-1, BLOCKS * BLOCK)

    def region(self, **changes):
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        return kvlease.Region(address, BLOCKS * BLOCK, BLOCK, BLOCK, BLOCKS, name="layer")._replace(**changes)

    def fill(self, block, text):
        self.memory[block * BLOCK:(block + 1) * BLOCK] = text.encode().ljust(BLOCK, b".")

    def text(self, block):
        return self.memory[block * BLOCK:(block + 1) * BLOCK].rstrip(b".").decode()


class Engine:
    """One context with registered memory, and what it has told. cache: its memory if it is none of the host's."""

    def __init__(self, name, cache=None, **config):
        self.id = unique(name)
        self.context = kvlease.Context({"engine_id": self.id, "transport": "loopback", **config})
        self.cache = cache or Cache()
        self.events = []
        self.context.register([self.cache.region()])
        self.producer = self.context.producer()

    def turn(self):
        self.context.step()
        self.events += self.context.poll()

    def close(self):
        self.context.close()

    def seen(self, kind, **fields):
        """The events of a kind with certain fields."""
        return [e for e in self.events if e.kind == kind and all(getattr(e, k) == v for k, v in fields.items())]


def until(what, *engines, seconds=20):
    """Steps engines until something has come about."""
    end = time.monotonic() + seconds
    while not (got := what()):
        assert time.monotonic() < end, f"waited in vain; events {[e.events for e in engines]}"
        for engine in engines:
            engine.turn()
    return got


def connect(reader, owner):
    """The owner as the reader's engine, once it is connected."""
    engine = reader.context.engine_add(owner.id, 1, user=77)
    reader.context.engine_handshake(engine, 0, owner.context.handshake_get())
    until(lambda: reader.seen(kvlease.EV_ENGINE_UP, handle=engine), owner, reader)
    return engine


def in_child(what):
    """Runs something in a fork; what it prints."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, str(what()).encode())
        except BaseException as e:
            os.write(write, f"{type(e).__name__}: {e}".encode())
        os._exit(0)
    os.close(write)
    assert select.select([read], [], [], 30)[0], "the child hangs"
    text = os.read(read, 65536).decode()
    os.close(read)
    assert os.waitpid(child, 0)[1] == 0
    return text
