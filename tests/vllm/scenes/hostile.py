"""What anyone on the network can send to P: notifications of a third NIXL agent, requests to the side channel, bytes to its port."""

import json
import socket
import subprocess
import time

import rig

from . import scene


class Rogue:
    def __init__(self, engine):
        self.process = subprocess.Popen(
            [str(rig.PYTHON), str(rig.HERE / "rogue.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.answer()
        self.at = {"host": "127.0.0.1", "port": engine.spec["port"]}

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise rig.Died("the rogue")
        return json.loads(line)

    def ask(self, cmd, **arguments):
        self.process.stdin.write(json.dumps({"cmd": cmd, "n": 0, **arguments}) + "\n")
        answer = self.answer()
        if not answer["ok"]:
            raise ValueError(answer["error"])
        return answer

    def close(self):
        self.process.kill()
        self.process.wait()


def messages(live):
    """Name, bytes. Live is the id of a request that P holds."""
    return [
        ("not UTF-8", b"\xff\xfe:1"), ("no colon", b"nothing"), ("no number", live + b":x"), ("empty", b""),
        ("a live id alone", live + b":"), ("a heartbeat that is not UTF-8", b"HB:\xc3\x28"), ("an empty heartbeat", b"HB:"),
        ("a number of 5,000 digits", live + b":" + b"9" * 5000), ("a negative number", live + b":-1"), ("none", live + b":0"),
        ("100,000 commas", b"HB:" + b"," * 100000),
        ("1 MiB of one id", b"HB:" + b"x" * (1 << 20)), ("a push registration", b"PUSH_REG:\x81\xa1"),
        ("ours, cut off", b"\xff\x01\x01"), ("ours, of random bytes", b"\xff" + bytes(range(200))), ("an unknown id", b"nobody:1"),
    ]


# Each but the last two ends a stock engine, which has to be started again.
STOCK_MESSAGES = ("not UTF-8", "no colon", "no number", "100,000 commas", "an unknown id")


@scene("a third agent sends malformed notifications to P", about="p")
def notifications(mix):
    fell, released = [], []
    todo = [name for name, _ in messages(b"") if mix.kinds[0] != "stock" or name in STOCK_MESSAGES]
    count = len(todo)
    while todo:
        p, live = mix.p, None
        rogue = Rogue(p)
        try:
            rogue.ask("meet", **rogue.at)
            while todo:
                name = todo.pop(0)
                if live is None or p.stat()["held"] == 0:  # ended by time, or by a message
                    live = mix.rig.prefill(p, mix.name(), mix.prompt(40))["remote_request_id"]
                rogue.ask("send", message=dict(messages(live.encode()))[name].hex())
                if p.wait_stat(lambda s: s["held"] == 0, 0.25) is not None:
                    released.append(name)
        except rig.Died:
            fell.append(f"{name} ({str(p.why)[:60]})")
        finally:
            rogue.close()
    mix.promise(f"P survives each of {count}", not fell, "all" if not fell else "ended by: " + "; ".join(fell), by="p")
    if fell:
        mix.replace(mix.d)  # which would not read from the P that took its place
    mix.promise("and holds its lease", not released, "yes" if not released else "ended by: " + ", ".join(released), by="nobody")
    mix.all_right("the next request is served", [mix.fresh()])


REQUESTS = [
    ("a rank that is not there", {"rank": 7}), ("a stage that is not there", {"pp": 3}), ("a negative rank", {"rank": -1}),
    ("not msgpack", {"frame": "c1c1c1"}), ("nothing", {"frame": ""}), ("a map", {"frame": "81a16101"}), ("two elements", {"frame": "92a16100"}),
    ("text for a rank", {"frame": "93c40c6765745f6d6574615f6d736700a178"}), ("another question", {"ask": "something"}),
    ("40 frames", {"frame": "00", "dealer": 40}), ("1 MiB", {"frame": "c6" + "00" * (1 << 20)}),
]
# Each but the last ends the listener of a stock engine, which has to be started again.
STOCK_REQUESTS = ("a rank that is not there", "not msgpack", "another question")


@scene("malformed requests to P's side channel", about="p")
def handshakes(mix):
    rogue, deaf = Rogue(mix.p), []
    requests = [(n, r) for n, r in REQUESTS if mix.kinds[0] != "stock" or n in STOCK_REQUESTS]
    try:
        for name, request in requests:
            rogue.ask("handshake", **rogue.at, wait=0.3, **request)
            if not rogue.ask("handshake", **rogue.at, wait=2)["answered"]:
                deaf.append(name)
                if not mix.p.alive:
                    break
                mix.replace(mix.p)
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("160301020001000201"), bytes(4096)):  # HTTP, TLS, zeros
            with socket.create_connection(("127.0.0.1", mix.p.spec["port"])) as s:
                s.sendall(data)
                time.sleep(0.05)
        idle = [socket.create_connection(("127.0.0.1", mix.p.spec["port"])) for _ in range(100)]
        if not rogue.ask("handshake", **rogue.at, wait=5)["answered"]:
            deaf.append("bytes that are not ZeroMQ, and 100 idle connections")
        for s in idle:
            s.close()
    finally:
        rogue.close()
    mix.promise(f"P answers the next asker after each of {len(requests) + 1}", not deaf,
                "yes" if not deaf else "silent for good after: " + ", ".join(deaf), by="p")
    mix.replace(mix.d)
    mix.all_right("a D that has not met it is served", [mix.fresh()], by="p")
