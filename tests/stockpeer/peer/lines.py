"""How a stand-in is driven: JSON lines on stdin, each answered by the line with the same "re"; events carry "ev".

"t" is CLOCK_BOOTTIME in ns.
"""

import json
import queue
import sys
import threading
import time


class Lines:
    def __init__(self, source=sys.stdin, sink=sys.stdout):
        self._source, self._sink = source, sink
        self._commands, self._out = queue.SimpleQueue(), threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self._source:
            self._commands.put(json.loads(line))
        self._commands.put({"cmd": "quit"})

    def say(self, **report):
        report["t"] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        with self._out:
            self._sink.write(json.dumps(report) + "\n")
            self._sink.flush()

    def carry_out(self, target, fatal=()):
        """Runs the commands that have come: methods of target named do_<cmd>. True: quit. What is fatal goes through."""
        while not self._commands.empty():
            command = self._commands.get()
            name, n = command.pop("cmd"), command.pop("n", None)
            if name == "quit":
                return True
            try:
                answer = getattr(target, "do_" + name)(**command)
            except fatal:
                raise
            except Exception as e:  # the driver hears of its mistakes
                self.say(re=n, ok=False, error=f"{type(e).__name__}: {e}")
            else:
                self.say(re=n, ok=True, **(answer or {}))
        return False
