"""What both sides of the stand-in have: NIXL agent, cache, clock, and the loop of steps in which everything happens."""

import argparse
import ctypes
import os
import sys
import time
import uuid

import cache
import lines
import wire

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: E402


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--engine-id", default=str(uuid.uuid4()))
    p.add_argument("--second", type=float, default=1.0, help="how long one second of vLLM's settings lasts here")
    p.add_argument("--kv-lease-duration", type=int, default=30)
    p.add_argument("--pass-time", type=float, default=0.01, help="of a step, in s")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--blocks", type=int, default=64)
    p.add_argument("--tp-size", type=int, default=1)
    p.add_argument("--tp-rank", type=int, default=0)
    p.add_argument("--host", default="127.0.0.1", help="of the side channel")
    p.add_argument("--model", default="stand-in", help="part of the compatibility hash")
    return p


class Engine:
    """One worker and its scheduler. Lengths of time follow vLLM's integer arithmetic, in units of --second."""

    def __init__(self, args):
        self.args = args
        duration = args.kv_lease_duration
        self.duration, self.interval, self.extension = (n * args.second for n in (duration, duration // 6, duration * 2 // 3))
        self.hash = wire.compatibility_hash(model=args.model)
        self.cache = cache.Cache(args.layers, args.blocks, (args.tp_rank, args.tp_size))
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.cache.memory))
        self.agent = nixl_agent(str(uuid.uuid4()), nixl_agent_config(num_threads=4, capture_telemetry=True))
        regions = [(self.base + i * self.cache.size, self.cache.size, 0, "") for i in range(args.layers)]
        self.agent.register_memory(self.agent.get_reg_descs(regions, "DRAM"), backends=["UCX"])
        self.lines = lines.Lines()
        self.stalled_until = 0.0

    def metadata(self, **changes):
        """The map of this rank."""
        layers, c = self.args.layers, self.cache
        return wire.metadata(**{
            "engine_id": self.args.engine_id, "agent_metadata": self.agent.get_agent_metadata(),
            "kv_caches_base_addr": [self.base + i * c.size for i in range(layers)], "device_id": 0, "num_blocks": c.blocks,
            "block_lens": [c.block_len] * layers, "block_strides": [c.block_len] * layers, "kv_cache_layout": "LBHNC",
            "block_size": 16, "ssm_sizes": (0, 0), "attn_backend_name": "FLASH_ATTN", "physical_blocks_per_logical_kv_block": 1,
            "region_num_blocks": [c.blocks] * layers, "region_group_ids": [0] * layers,
            "region_names": [f"layer.{i}" for i in range(layers)], "region_mem_types": ["DRAM"] * layers,
            "region_members": [[f"layer.{i}"] for i in range(layers)], **changes,
        })

    def do_handshake(self):
        return {"metadata": self.metadata().hex(), "payload": wire.handshake_payload(self.hash, self.metadata()).hex()}

    def do_stall(self, seconds):
        """The main loop stops, the process and NIXL's own thread go on."""
        self.stalled_until = time.perf_counter() + seconds

    def run(self):
        self.lines.say(ev="ready", engine_id=self.args.engine_id, pid=os.getpid(), **self.ready())
        while not self.lines.carry_out(self):
            if time.perf_counter() >= self.stalled_until:
                try:
                    self.step()
                except Exception as e:  # in vLLM it leaves the worker's step, and the engine is gone
                    self.lines.say(ev="died", error=f"{type(e).__name__}: {e}")
                    sys.stdout.flush()
                    os._exit(1)
            time.sleep(self.args.pass_time)
        self.lines.say(ev="bye")
        sys.stdout.flush()
        os._exit(0)  # as a killed process leaves: agents are not taken down in order

    def ready(self):
        return {}
