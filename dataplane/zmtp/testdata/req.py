"""libzmq sockets that ask our ROUTER: req.py SCENE PORT HOST COUNT. Prints "ok" and what it counted, or fails."""

import sys
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

scene, port, host, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
ctx = zmq.Context()


def connect(kind, **options):
    sock = ctx.socket(kind)
    sock.setsockopt(zmq.LINGER, 0)
    sock.setsockopt(zmq.IPV6, 1)
    sock.setsockopt(zmq.RCVTIMEO, 30000)
    sock.setsockopt(zmq.SNDTIMEO, 30000)
    for name, value in options.items():
        sock.setsockopt(getattr(zmq, name), value)
    monitor = sock.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    sock.connect(f"tcp://{host}:{port}")
    return sock, monitor


def ask(sock, *frames):
    sock.send_multipart(frames)
    reply = sock.recv_multipart()
    assert tuple(reply) == frames, (frames, reply)


def close(sock):
    sock.disable_monitor()
    sock.close(0)


def wait_for(monitor, event):
    while monitor.poll(30000):
        if recv_monitor_message(monitor)["event"] == event:
            return
    raise TimeoutError(event)


if scene == "connects":
    for i in range(count):
        sock, _ = connect(zmq.REQ)
        ask(sock, b"request %d" % i, b"")
        close(sock)
elif scene == "requests":
    sock, _ = connect(zmq.REQ)
    start = time.perf_counter()
    for i in range(count):
        sock.send(b"5 0")  # means something to router.py, too
        sock.recv_multipart()
    print(round((time.perf_counter() - start) / count * 1e9))
elif scene == "large":
    sock, _ = connect(zmq.REQ)
    for i in range(count):
        ask(sock, bytes([i]) * (1 << 20))
elif scene == "correlate":
    sock, _ = connect(zmq.REQ, REQ_CORRELATE=1, REQ_RELAXED=1)
    for i in range(count):
        ask(sock, b"request %d" % i)
elif scene == "identity":
    # Two sockets that claim one identity: each gets its own replies.
    a, _ = connect(zmq.REQ, IDENTITY=b"same")
    b, _ = connect(zmq.REQ, IDENTITY=b"same")
    for i in range(count):
        ask(a, b"a %d" % i)
        ask(b, b"b %d" % i)
elif scene == "dropped":
    # Each malformed request costs the connection; libzmq makes a new one by itself.
    sock, monitor = connect(zmq.DEALER)
    for i in range(count):
        wait_for(monitor, zmq.EVENT_HANDSHAKE_SUCCEEDED)
        ask(sock, b"", b"good %d" % i)
        sock.send_multipart([b"no envelope"])
        wait_for(monitor, zmq.EVENT_DISCONNECTED)
elif scene == "heartbeats":
    sock, monitor = connect(zmq.REQ, HEARTBEAT_IVL=count, HEARTBEAT_TIMEOUT=10 * count)
    wait_for(monitor, zmq.EVENT_HANDSHAKE_SUCCEEDED)
    assert not monitor.poll(20 * count), "disconnected: no PONG came"
    ask(sock, b"still here")
print("ok")
ctx.destroy(linger=0)
