"""The two ends of vLLM's handshake side channel, over libzmq."""

import threading
import time

import wire
import zmq

REQUEST_TIMEOUT_MS = 5000


class Listener(threading.Thread):
    """Serves one request at a time. Whatever it does not expect ends it for good; the socket stays open, nobody at it."""

    def __init__(self, host, payloads):
        super().__init__(daemon=True)
        self.payloads = payloads  # (pp rank, transfer rank) -> bytes
        self.requests = 0
        self.delay = 0.0
        self.deaf = False
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.IPV6, int(":" in host))
        self.port = self.socket.bind_to_random_port(f"tcp://[{host}]" if ":" in host else f"tcp://{host}")

    def bind_again(self, host, port):
        """Takes a port that another process had, as a restarted engine does."""
        self.socket.unbind(self.socket.getsockopt(zmq.LAST_ENDPOINT))
        self.socket.bind(f"tcp://{host}:{port}")
        self.port = port

    def run(self):
        while True:
            identity, _, request = self.socket.recv_multipart()
            self.requests += 1
            _, pp_rank, rank = wire.unpack(request)
            payload = self.payloads[(pp_rank, rank)]
            if self.deaf:
                continue
            time.sleep(self.delay)
            self.socket.send_multipart((identity, b"", payload, wire.pack(time.perf_counter())))


def shake_hands(host, port, engine_id, digest, ranks):
    """Asks an engine for its ranks, one after the other. Answers {rank: metadata}, and owner clock minus ours."""
    context = zmq.Context()
    try:
        socket = context.socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(":" in host))
        socket.setsockopt(zmq.RCVTIMEO, REQUEST_TIMEOUT_MS)
        socket.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
        maps, best = {}, None
        for rank in ranks:
            sent = time.perf_counter()
            socket.send(wire.handshake_request(0, rank))
            frames = socket.recv_multipart()
            received = time.perf_counter()
            assert len(frames) == 2, f"{len(frames)} frames"
            maps[rank] = check(frames[0], engine_id, digest)
            offset = wire.unpack(frames[1]) - (sent + received) / 2
            if best is None or received - sent < best[0]:
                best = received - sent, offset
        return maps, best[1]
    finally:
        context.destroy(linger=0)


def check(payload, engine_id, digest):
    """The checks of a client, in its order."""
    outer = wire.unpack(payload)
    if outer["compatibility_hash"] != digest:
        raise ValueError("the compatibility hash is another one")
    metadata = wire.read_metadata(outer["agent_metadata_bytes"])
    if metadata["engine_id"] != engine_id:
        raise ValueError(f"engine {metadata['engine_id']!r} answers, {engine_id!r} was expected")
    return metadata
