"""A libzmq socket that answers as vLLM's handshake listener does: router.py TYPE HOST MECHANISM HEARTBEAT_MS.

Prints its port. A request is "SIZE DELAY_MS": the reply is SIZE bytes of a pattern and a second frame. Ends with stdin.
"""

import sys
import time

import zmq

kind, host, mechanism, heartbeat = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
ctx = zmq.Context()
sock = ctx.socket(getattr(zmq, kind))
sock.setsockopt(zmq.LINGER, 0)
sock.setsockopt(zmq.IPV6, 1)
if mechanism == "PLAIN":
    sock.setsockopt(zmq.PLAIN_SERVER, 1)
if heartbeat:
    sock.setsockopt(zmq.HEARTBEAT_IVL, heartbeat)
    sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10 * heartbeat)
print(sock.bind_to_random_port(f"tcp://{host}"), flush=True)

poller = zmq.Poller()
poller.register(sys.stdin.fileno(), zmq.POLLIN)
if kind != "PUB":
    poller.register(sock, zmq.POLLIN)
while True:
    ready = dict(poller.poll())
    if sys.stdin.fileno() in ready:
        break
    parts = sock.recv_multipart()
    envelope, body = (parts[:2], parts[2:]) if kind == "ROUTER" else ([], parts)
    size, delay = (int(x) for x in body[0].split())
    if delay:
        time.sleep(delay / 1000)
    payload = (bytes(range(251)) * (size // 251 + 1))[:size]
    sock.send_multipart(envelope + [payload, b"second"])
ctx.destroy(linger=0)
