"""What the library says goes to vLLM's log, also of engines that make no pass."""

import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
import unittest

import stage
from stage import until

import kvlease
from kvlease.vllm import logs, owner, reader, scheduler, worker


def threads():
    return [t for t in threading.enumerate() if t.name == "kvlease_logs"]


class Context:
    """What it says, once."""

    def __init__(self, *what, error=None):
        self.what, self.error, self.asked = list(what), error, 0

    def log(self):
        self.asked += 1
        if self.error is not None:
            raise self.error
        out, self.what = self.what, []
        return [{"level": "warning", "kind": kind, "what": "it is so", "remedy": "none"} for kind in out]


class Logs(unittest.TestCase):
    def test_an_engine_at_rest_says_what_happens_to_it(self):
        e = stage.Engine("p")
        self.addCleanup(e.close)
        with self.assertLogs(logs.logger, "WARNING") as said:
            e.side._ctx.engine_add("gone", 1, host="127.0.0.1", port=1)
            until(lambda: any("kvlease handshake_failing: engine gone" in line for line in said.output))  # the log tells it, without a pass

    def test_there_is_one_thread_as_long_as_there_is_a_context(self):
        self.assertEqual(threads(), [])
        p, d = stage.Engine("p"), stage.Engine("d")
        self.addCleanup(p.close)
        self.addCleanup(d.close)
        self.assertEqual(len(threads()), 1, "for four contexts")
        p.close()
        self.assertEqual(len(threads()), 1)
        d.close()
        until(lambda: not threads())  # it ends with the last one

    def test_what_was_said_before_a_context_closes_is_told(self):
        teller, ctx = logs.Teller(), Context("one", "two")
        with self.assertLogs(logs.logger, "WARNING") as said:
            teller.watch(ctx)
            teller.leave(ctx)
        self.assertEqual([line.split(": ")[0].split()[-1] for line in said.output], ["one", "two"])
        asked = ctx.asked
        until(lambda: not threads())  # nobody looks at it any more
        self.assertEqual(ctx.asked, asked)

    def test_one_that_cannot_be_asked_stops_no_other(self):
        teller, good = logs.Teller(), Context()
        closed, busy = Context(error=kvlease.Closed("closed")), Context(error=kvlease.Busy("another call"))
        for ctx in (closed, busy, good):
            teller.watch(ctx)
        until(lambda: good.asked > 1 and busy.asked > 1)  # they are asked again
        self.assertEqual(closed.asked, 1)
        for ctx in (closed, busy, good):
            teller.leave(ctx)
        until(lambda: not threads())  # it ends

    def test_what_we_say_has_the_handlers_and_the_level_of_vllm(self):
        for module in (logs, owner, reader, scheduler, worker):
            with self.assertLogs("vllm", "INFO") as said:
                module.logger.info("history of %s", module.__name__)
            self.assertEqual([r.getMessage() for r in said.records], [f"history of {module.__name__}"])
        vllm = logging.getLogger("vllm")
        self.addCleanup(vllm.setLevel, vllm.level)
        vllm.setLevel("WARNING")
        self.assertFalse(logs.logger.isEnabledFor(logging.INFO))

    def test_a_logger_that_raises_costs_no_other_line_and_no_close(self):
        class Raises(logging.Filter):
            def filter(self, record):
                if "bad" in record.getMessage():
                    raise OSError("no room")
                return True

        raises, teller, ctx, other = Raises(), logs.Teller(), Context("bad", "good"), Context()
        logs.logger.addFilter(raises)
        self.addCleanup(logs.logger.removeFilter, raises)
        with self.assertLogs(logs.logger, "WARNING") as said:
            teller.watch(ctx)
            teller.watch(other)
            until(lambda: ctx.asked > 1 and other.asked)  # the thread goes on
            ctx.what += ["bad", "last"]
            teller.leave(ctx)
        teller.leave(other)
        self.assertEqual([re.sub(".*kvlease |: it is so", "", line) for line in said.output], ["good", "last"])
        until(lambda: not threads())

    def test_a_logger_that_stands_holds_no_close_up_for_ever(self):
        stands, teller = threading.Event(), logs.Teller()

        class Stands(Context):
            def log(self):
                self.asked += 1
                if threading.current_thread().name == "kvlease_logs":
                    stands.wait(60)
                return []

        ctx = Stands()
        teller.watch(ctx)
        until(lambda: ctx.asked)  # it is asked
        teller.leave(ctx)
        self.assertFalse(stands.is_set())
        stands.set()
        until(lambda: not threads())  # it ends

    def test_a_forked_child_has_its_own_and_an_interpreter_that_ends_tells_the_rest(self):
        program = textwrap.dedent("""
            import logging, os, sys
            from test_logs import Context, logs, threads
            handler = logging.StreamHandler(sys.stdout)
            handler.setFormatter(logging.Formatter("%(message)s"))
            logs.logger.setLevel("INFO")
            logs.logger.handlers, logs.logger.propagate = [handler], False
            ours = Context()
            logs.teller.watch(ours)
            with logs.teller._changed:  # the child gets it as it is, held
                pid = os.fork()
                if pid == 0:
                    assert not threads(), "no thread of the parent"
                    logs.teller.watch(Context("child"))
                    logs.teller.end()
                    assert not threads()
                    sys.stdout.flush()
                    os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            assert len(threads()) == 1
            ours.what.append("parent")
        """)
        env = dict(os.environ, PYTHONPATH=os.pathsep.join([str(stage.HERE), *sys.path[1:]]))
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300)
        self.assertEqual((done.returncode, re.findall("Traceback|Fatal|Exception", done.stderr)), (0, []), done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["kvlease child: it is so", "kvlease parent: it is so"])


if __name__ == "__main__":
    unittest.main()
