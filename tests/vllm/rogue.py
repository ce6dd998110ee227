"""A third NIXL agent: it takes an engine's metadata from its side channel and sends it whatever bytes it is told.

usage: rogue.py       driven by JSON lines; every command opens its own socket, so a refusal does not outlive it
"""

import os
import sys
import time
import uuid
from pathlib import Path

os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
os.environ.setdefault("UCX_LOG_LEVEL", "fatal")
sys.path.append(str(Path(__file__).resolve().parent.parent / "stockpeer" / "peer"))
import lines  # noqa: E402
import msgspec  # noqa: E402
import zmq  # noqa: E402
from nixl._api import nixl_agent, nixl_agent_config  # noqa: E402

ASK = b"get_meta_msg"


class Rogue:
    def __init__(self):
        self.agent = nixl_agent(str(uuid.uuid4()), nixl_agent_config())
        self.lines = lines.Lines()
        self.peer = None

    def do_handshake(self, host, port, ask=ASK.decode(), pp=0, rank=0, frame=None, wait=5.0, dealer=None):
        """Asks as vLLM does; frame replaces the request's bytes, dealer sends that many frames of them. The answer's map, if any."""
        socket = zmq.Context.instance().socket(zmq.REQ if dealer is None else zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(wait * 1000))
        socket.connect(f"tcp://{host}:{port}")
        request = msgspec.msgpack.encode((ask.encode(), pp, rank)) if frame is None else bytes.fromhex(frame)
        try:
            socket.send(request) if dealer is None else socket.send_multipart([request] * dealer)
            payload, stamp = socket.recv_multipart()
        except zmq.Again:
            return {"answered": False}
        except ValueError:
            return {"answered": True, "map": None}
        finally:
            socket.close()
        outer = msgspec.msgpack.decode(payload)
        return {"answered": True, "map": {k: shown(v) for k, v in msgspec.msgpack.decode(outer["agent_metadata_bytes"]).items()}}

    def do_meet(self, host, port):
        """Handshake, and the agent is loaded."""
        blob = bytes.fromhex(self.do_handshake(host, port)["map"]["agent_metadata"])
        self.peer = self.agent.add_remote_agent(blob)

    def do_send(self, message):
        self.agent.send_notif(self.peer, notif_msg=bytes.fromhex(message))

    def run(self):
        self.lines.say(ev="ready", pid=os.getpid())
        while not self.lines.carry_out(self):
            time.sleep(0.005)
        os._exit(0)


def shown(value):
    return value.hex() if isinstance(value, bytes) else value


Rogue().run()
