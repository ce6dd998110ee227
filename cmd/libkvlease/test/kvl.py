"""The structs of kvlease.h for ctypes, one for all Python programs that drive the library in tests."""

import ctypes as c


class Bytes(c.Structure):
    _fields_ = [("data", c.c_char_p), ("len", c.c_size_t)]


class Blocks(c.Structure):
    _fields_ = [("ids", c.POINTER(c.c_uint32)), ("n", c.c_uint32), ("first", c.c_uint32)]


class Event(c.Structure):
    _fields_ = [("kind", c.c_uint16), ("reserved", c.c_uint16), ("flags", c.c_uint32), ("status", c.c_int32),
                ("rank", c.c_uint32), ("handle", c.c_uint64), ("user", c.c_uint64), ("value0", c.c_uint64),
                ("value1", c.c_uint64), ("time_ns", c.c_uint64), ("reasons", c.c_uint64)]


class Region(c.Structure):
    _fields_ = [("addr", c.c_uint64), ("bytes", c.c_uint64), ("block_len", c.c_uint64), ("block_stride", c.c_uint64),
                ("blocks", c.c_uint32), ("group", c.c_int32), ("device", c.c_uint32), ("mem", c.c_uint32), ("name", Bytes),
                ("parts", c.c_uint32), ("flags", c.c_uint32)]


class Grant(c.Structure):
    _fields_ = [("size", c.c_uint32), ("flags", c.c_uint32), ("id", Bytes), ("groups", c.POINTER(Blocks)),
                ("groups_n", c.c_uint32), ("tokens", c.c_uint32), ("ttl_ns", c.c_uint64), ("expected", c.c_uint64),
                ("ready_event", c.c_uint64), ("user", c.c_uint64)]


class Remote(c.Structure):
    _fields_ = [("size", c.c_uint32), ("native", c.c_uint32), ("id", Bytes), ("engine_id", Bytes), ("host", Bytes),
                ("port", c.c_uint32), ("tp_size", c.c_uint32), ("tokens", c.c_uint32), ("groups_n", c.c_uint32),
                ("groups", c.POINTER(Blocks)), ("epoch", c.c_uint64), ("slot", c.c_uint32), ("generation", c.c_uint32),
                ("key", c.c_uint64), ("expires_ns", c.c_uint64), ("pp_size", c.c_uint32), ("reserved", c.c_uint32)]


class Desc(c.Structure):
    _fields_ = [("size", c.c_uint32), ("ranks", c.c_uint32), ("engine_id", Bytes), ("host", Bytes), ("port", c.c_uint32),
                ("pp_size", c.c_uint32), ("user", c.c_uint64)]


class Read(c.Structure):
    _fields_ = [("size", c.c_uint32), ("groups_n", c.c_uint32), ("local", c.POINTER(Blocks)), ("remote", c.POINTER(Blocks))]
