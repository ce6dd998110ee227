"""Device memory of a fake driver (cuda/fakecuda), as an engine on a GPU would have it: by the driver's own functions."""

import ctypes
import os

import kvlease
import lab

PATH = os.environ.get("KVLEASE_CUDA", "")  # conftest.py names the fake, or nothing


class Event:
    """As torch.cuda.Event: the event itself is made when it is first recorded, and goes with the object."""

    def __init__(self, gpu):
        self._gpu, self._handle = gpu, ctypes.c_void_p()

    @property
    def cuda_event(self):
        return self._handle.value or 0

    def record(self):
        if not self.cuda_event:
            self._gpu.call("cuEventCreate", ctypes.byref(self._handle), 2)  # CU_EVENT_DISABLE_TIMING
        self._gpu.call("cuEventRecord", self._handle, None)
        return self

    def __del__(self):
        if self.cuda_event:
            self._gpu.call("cuEventDestroy_v2", self._handle)


class Gpu:
    """Device 0, with an engine that has begun with it and has its context current on this thread."""

    def __init__(self):
        self._driver = ctypes.CDLL(PATH)
        self.do("reset")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self._addr = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(self._addr), ctypes.c_size_t(lab.BLOCKS * lab.BLOCK))
        self.call("cuMemsetD8_v2", self._addr, 0, ctypes.c_size_t(lab.BLOCKS * lab.BLOCK))

    def call(self, function, *args):
        if code := getattr(self._driver, function)(*args):
            raise RuntimeError(f"{function}: {code}")

    def do(self, command):
        """A command of cuda/fakecuda/src/script.c."""
        return self._driver.kvl_fake_cuda_control(command.encode())

    def region(self):
        return kvlease.Region(self._addr.value, lab.BLOCKS * lab.BLOCK, lab.BLOCK, lab.BLOCK, lab.BLOCKS, mem="vram", name="layer")

    def write(self, block, value):
        """A kernel that fills a block."""
        self.do(f"launch {self._addr.value + block * lab.BLOCK:#x} {lab.BLOCK} {value}")

    def byte(self, block):
        return self.do(f"byte {self._addr.value + block * lab.BLOCK:#x}")

    def events_destroyed(self):
        return self.do("count cuEventDestroy")

    def leave(self):
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self.call("cuDevicePrimaryCtxRelease_v2", 0)
