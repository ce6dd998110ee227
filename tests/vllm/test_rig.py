"""The rig itself: each of its checks fails on what it is there to find. Engines are threads that speak engine.py's lines; nothing is installed.

usage: test_rig.py [Class.test ...]
"""

import contextlib
import io
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mix  # noqa: E402
import rig  # noqa: E402
import run  # noqa: E402
import scenes  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SHORT = 0.2  # s that a test waits for what does not come


def says(prompt, n):
    """Tokens of the only model there is."""
    return [(sum(prompt) + i) % 251 for i in range(n)]


class Fake:
    """An engine. What it is told to do wrong is in `faults`, by the name of the engine."""

    faults = {}

    def __init__(self, channel):
        self.channel = channel
        threading.Thread(target=self.run, args=(channel.makefile("r"), channel.makefile("w")), daemon=True).start()

    def run(self, reader, writer):
        with contextlib.suppress(OSError, ValueError):
            self.serve(reader, lambda **line: (writer.write(json.dumps(line) + "\n"), writer.flush()))

    def serve(self, reader, say):
        spec = json.loads(reader.readline())
        fault = self.faults.get(spec["name"], {})
        Path(spec["log_file"]).write_text(f"{spec['name']} has begun\n")
        say(ev="ready", pid=2**22 + 1)  # nobody's
        if "dies" in fault:
            say(ev="died", error=fault["dies"])
            self.channel.shutdown(socket.SHUT_RDWR)
            return
        for line in reader:
            command = json.loads(line)
            kind = command["cmd"]
            if kind == "quit":
                self.channel.shutdown(socket.SHUT_RDWR)
                return
            if kind == fault.get("refuses"):
                say(re=command["n"], ok=False, error="no")
                continue
            if kind != fault.get("deaf"):
                say(re=command["n"], ok=True, held=fault.get("held", 0), requests=0, metrics=fault.get("metrics", {}), internal="")
            if kind == "generate" and "silent" not in fault:
                say(ev="out", id=command["id"], **self.answer(spec, command, fault))

    def answer(self, spec, command, fault):
        tokens = says(command["prompt"], command["max_tokens"])
        wants = command["kv"] or {}
        kv = {"do_remote_prefill": True, "remote_request_id": command["id"], "key": [1, 2]} if wants.get("do_remote_decode") else None
        if wants.get("do_remote_prefill") and wants != {"do_remote_prefill": True, "remote_request_id": wants.get("remote_request_id"), "key": [1, 2]}:
            tokens = [0] * len(tokens)  # the parameters are not P's
        if spec.get("changes"):
            tokens = [t + 1 for t in tokens]
        tokens = fault.get("spoil", lambda t: t)(tokens)
        return {"tokens": [tokens], "reason": fault.get("reason", "length"), "kv": kv, "cached": 0}


class Nursery:
    folder = "/nowhere"

    def __init__(self, out):
        pass

    def connect(self):
        ours, theirs = socket.socketpair()
        Fake(theirs)
        return ours

    def close(self):
        pass


class Rigged(unittest.TestCase):
    """A rig over such engines. Folder: where logs go."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.multiple(rig, Nursery=Nursery, PYTHON=Path(sys.executable), OUT=Path(self.folder), PACKAGE=self.folder))
        self.enterContext(mock.patch.object(Fake, "faults", {}))
        self.enterContext(mock.patch.object(rig.Engine, "signal", lambda engine, number: engine.channel.shutdown(socket.SHUT_RDWR)))
        self.rig = self.enterContext(rig.Rig(self.folder))
        self.said = []

    def mix(self, *kinds, **faults):
        """faults: of p and d, what they do wrong."""
        Fake.faults.update(faults)
        m = mix.Mix(self.rig, *(kinds or ("kvlease", "kvlease")), 1, self.said.append)
        m.scene = "a scene"
        return m

    def verdicts(self, m):
        return [f.verdict for f in m.findings]


class Tokens(Rigged):
    def test_tokens_of_a_single_engine_are_right(self):
        m = self.mix()
        self.assertEqual(m.fresh()[:2], (True, 0))

    def test_each_way_to_be_wrong_is_seen(self):
        for what, spoil, wrong in (
            ("the first", lambda t: [t[0] + 1, *t[1:]], 1), ("the last", lambda t: [*t[:-1], t[-1] + 1], 1), ("all", lambda t: [x + 1 for x in t], 8),
            ("one too few", lambda t: t[:-1], 1), ("one too many", lambda t: [*t, 3], 1), ("none", lambda t: [], 8),
        ):
            with self.subTest(what):
                m = self.mix(d={"spoil": spoil})
                judged = m.fresh()
                self.assertEqual(judged[:2], (False, wrong))
                m.never_wrong([judged])
                m.all_right("right", [judged])
                self.assertEqual(self.verdicts(m), ["BROKEN", "BROKEN"])
                m.d.kill()

    def test_one_wrong_answer_among_right_ones_is_seen(self):
        m = self.mix()
        right, wrong = mix.Judged(True, 0, "8 tokens right"), mix.Judged(False, 1, "1 of 8 tokens wrong")
        m.all_right("right", [right, wrong, right])
        m.never_wrong([right, wrong, right])
        self.assertEqual(self.verdicts(m), ["BROKEN", "BROKEN"])
        self.assertIn("2 of 3 right; 1 of 8 tokens wrong", m.findings[0].seen)

    def test_a_refused_request_is_not_right_and_has_no_wrong_token_unless_it_has_told_one(self):
        m = self.mix(d={"reason": "error", "spoil": lambda t: []})
        self.assertEqual(m.fresh()[:2], (False, 0))
        m.d.kill()
        m = self.mix(d={"reason": "error", "spoil": lambda t: [t[0] + 1]})
        self.assertEqual(m.fresh()[:2], (False, 1))

    def test_a_refusal_is_followed_by_another_request_only_where_a_stock_lease_was_not_proven_for_long(self):
        for kinds, proven, tries in ((("stock", "kvlease"), 0, 2), (("stock", "kvlease"), 60, 1), (("kvlease", "kvlease"), 0, 1), (("stock", "stock"), 0, 1)):
            for spoil, wrong in ((lambda t: [], 0), (lambda t: [t[0] + 1], 1)):
                with self.subTest(kinds=kinds, proven=proven, wrong=wrong), mock.patch.object(mix, "PROVEN", proven):
                    m = self.mix(*kinds, d={"reason": "error", "spoil": spoil})
                    self.assertEqual(m.fresh()[:2], (False, wrong))
                    self.assertEqual(m.names, 1 if wrong else tries)
                    m.d.kill()

    def test_a_request_that_does_not_end_is_not_right(self):
        m = self.mix(d={"silent": True})
        self.assertFalse(m.fresh(limit=SHORT).right)

    def test_another_model_has_a_single_engine_of_its_own(self):
        window = {"sliding_window": 64}
        m = self.mix()
        answer = m.rig.route(m.p, m.d, "a", [1, 2], 4)
        self.assertTrue(m.judge(answer, [1, 2], 4).right)
        self.assertFalse(m.judge(answer, [1, 2], 4, window).right)
        self.assertTrue(m.judge(m.rig.route(*m.pair("w", changes=window), "b", [1, 2], 4), [1, 2], 4, window).right)

    def test_parameters_go_from_p_to_d_as_they_are(self):
        m = self.mix()
        kv = m.rig.prefill(m.p, "a", [1, 2, 3])
        self.assertTrue(m.judge(m.d.generate("a", [1, 2, 3], 8, kv), [1, 2, 3], 8).right)
        other = m.d.generate("a other", [1, 2, 3], 8, {**kv, "key": None})
        self.assertEqual(m.judge(other, [1, 2, 3], 8).wrong, 8)


class Events(Rigged):
    def test_an_event_that_does_not_come_is_an_error(self):
        p = self.mix().p
        for wait in (lambda: p.wait_event("first", "a", SHORT), lambda: p.wait("a", SHORT)):
            with self.assertRaises(TimeoutError):
                wait()

    def test_a_command_without_an_answer_is_an_error(self):
        p = self.mix(p={"deaf": "stat"}).p
        with self.assertRaises(TimeoutError):
            p.ask("stat", limit=SHORT)

    def test_a_command_that_is_refused_is_an_error(self):
        p = self.mix(p={"refuses": "sleep"}).p
        with self.assertRaisesRegex(ValueError, "p: sleep: no"):
            p.ask("sleep")

    def test_a_condition_that_does_not_come_about_is_none(self):
        p = self.mix(p={"held": 3}).p
        self.assertIsNone(p.wait_stat(lambda s: s["held"] == 0, SHORT))
        self.assertIsNotNone(p.wait_stat(lambda s: s["held"] == 3, SHORT))

    def test_an_engine_that_dies_is_an_error_that_names_why(self):
        p = self.rig.engine("p", "stock", wait=False)
        Fake.faults["d"] = {"dies": "KeyError: 'x'"}
        d = self.rig.engine("d", "stock", wait=False)
        with self.assertRaisesRegex(rig.Died, "d: KeyError"):
            d.ready()
            d.ask("stat")
        p.ready().kill()
        with self.assertRaises(rig.Died):
            p.ask("stat")

    def test_each_engine_has_its_log(self):
        m = self.mix()
        self.assertEqual((m.p.log(), m.d.log()), ("p has begun\n", "d has begun\n"))

    def test_late_reads_that_p_does_not_count_are_seen(self):
        counted = {"vllm:nixl_num_notifications_after_expiry_total": 2.0}
        m = self.mix("kvlease", "stock", p={"metrics": counted})
        m.counts_late(0, 2)
        with mock.patch.object(mix, "STATISTICS", 0):
            m.counts_late(0, 3)
        m.counts_late(0, 1)  # nor may it count others
        self.assertEqual(self.verdicts(m), ["ok", "BROKEN", "BROKEN"])


class Verdicts(Rigged):
    def test_who_must_keep_a_promise(self):
        keeps = {
            "all": "kk ks sk ss", "p": "kk ks", "d": "kk sk", "both": "kk", "p of a stock d": "ks", "nobody": "",
        }
        kinds = {"k": "kvlease", "s": "stock"}
        for by, pairs in keeps.items():
            for p, d in ("kk", "ks", "sk", "ss"):
                with self.subTest(by=by, p=p, d=d):
                    m = self.mix(kinds[p], kinds[d])
                    m.promise("a", False, "no", by)
                    m.promise("b", True, "yes", by)
                    self.assertEqual(self.verdicts(m), ["BROKEN", "ok"] if p + d in pairs.split() else ["seen", "holds"])
        self.assertEqual(keeps.keys(), mix.KEEPERS.keys())

    def test_engines_that_do_not_come_to_rest_are_named_and_started_again(self):
        m = self.mix(p={"held": 3})
        before = m.p
        with mock.patch.object(mix, "GONE", SHORT), mock.patch.object(rig.Engine, "stat", lambda e: {"held": 3, "requests": 0, "statuses": {}}):
            m.rest()
        self.assertIsNot(m.p, before)
        self.assertIn("p kept 3 blocks", self.said[0])


class Run(Rigged):
    def play(self, *arguments, **played):
        """Exit code and report of run.py with these scenes."""
        list_ = [scenes.Scene(name, name, "both", play) for name, play in played.items()]
        argv = ["run.py", "--mixes", "kvlease+kvlease", *arguments]
        with mock.patch.object(run, "SCENES", list_), mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()) as out:
            return run.main(), out.getvalue()

    def test_it_ends_with_0_if_all_promises_are_kept(self):
        self.assertEqual(self.play(good=lambda m: m.all_right("right", [m.fresh()]))[0], 0)

    def test_it_ends_with_1_if_one_is_broken(self):
        code, text = self.play(good=lambda m: m.promise("a", True, "", "all"), bad=lambda m: m.promise("b", False, "", "all"))
        self.assertEqual(code, 1)
        self.assertIn("BROKEN kvlease P, kvlease D, bad: b", text)

    def test_a_scene_that_breaks_a_promise_once_is_played_again_and_said(self):
        tries = []
        code, text = self.play(flaky=lambda m: m.promise("a", tries.append(1) or len(tries) > 1, "", "all"))
        self.assertEqual((code, len(tries)), (0, 2))
        self.assertIn("again kvlease P, kvlease D, flaky: a", text)

    def test_a_wrong_token_is_not_played_again(self):
        wrong, tries = mix.Judged(False, 1, "1 of 8 tokens wrong"), []
        for say in (lambda m, j: m.all_right("right", j), lambda m, j: m.never_wrong(j)):
            tries.clear()
            code, text = self.play(bad=lambda m: tries.append(1) or say(m, [wrong if len(tries) == 1 else wrong._replace(right=True, wrong=0)]))
            self.assertEqual((code, len(tries)), (1, 1))
            self.assertIn("BROKEN", text)

    def test_many_broken_scenes_are_not_played_again(self):
        tries = []
        scenes_ = {f"s{i}": lambda m: m.promise("a", tries.append(1), "", "all") for i in range(run.AGAIN + 1)}
        self.assertEqual((self.play(**scenes_)[0], len(tries)), (1, run.AGAIN + 1))

    def test_a_scene_that_raises_or_finds_nothing_is_broken(self):
        for play in (lambda m: m.promise("a", True, "", "all") and 1 / 0, lambda m: None):
            self.assertEqual(self.play(scene=play)[0], 1)

    def test_names_that_are_none_are_refused(self):
        for arguments in (["--scenes", "no_such"], ["--mixes", "kvlease+other"], ["--mixes", "kvlease"]):
            with self.subTest(arguments), self.assertRaises(SystemExit):
                self.play(*arguments, good=lambda m: m.promise("a", True, "", "all"))

    def test_a_scene_about_one_side_is_played_once_for_each_kind_of_it(self):
        list_ = [scenes.Scene("b", "", "both", None), scenes.Scene("p", "", "p", None), scenes.Scene("d", "", "d", None)]
        plan = [("+".join(kinds), "".join(s.name for s in own)) for kinds, own in run.shared_out(run.MIXES, list_)]
        self.assertEqual(plan, [("kvlease+kvlease", "bpd"), ("stock+kvlease", "bp"), ("kvlease+stock", "bd"), ("stock+stock", "b")])


class Stopped(unittest.TestCase):
    def test_a_process_stands_still_once_each_of_its_threads_does(self):
        threads = "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\nprint('ready', flush=True)\ntime.sleep(600)"
        with subprocess.Popen([sys.executable, "-c", threads], stdout=subprocess.PIPE) as process:
            self.addCleanup(process.kill)
            process.stdout.readline()
            self.assertFalse(rig.stands(process.pid))
            engine = mock.Mock(spec=rig.Engine, pids=lambda: [process.pid], signal=process.send_signal)
            rig.Engine.stop(engine)
            self.assertTrue(rig.stands(process.pid))
            process.kill()
        self.assertTrue(rig.stands(process.pid))

    def test_a_process_that_goes_on_is_said(self):
        with subprocess.Popen(["sleep", "600"]) as process, mock.patch.object(rig, "ANSWER", SHORT):
            self.addCleanup(process.kill)
            engine = mock.Mock(spec=rig.Engine, pids=lambda: [process.pid], signal=lambda number: None)
            engine.name = "P"
            with self.assertRaisesRegex(rig.Died, "P does not stand still"):
                rig.Engine.stop(engine)
            process.kill()


class Documents(unittest.TestCase):
    """docs/vllm-weak-points.md names scenes and tests."""

    TEXT = (ROOT / "docs" / "vllm-weak-points.md").read_text()

    def test_every_scene_and_class_test_that_it_names_is_there(self):
        sources = {p.stem: p.read_text() for p in (ROOT / "tests" / "vllm" / "classes").glob("test_*.py")}
        names = {s.name for s in scenes.SCENES}
        named = re.findall(r"`(scene|class) ([\w.]+)`", self.TEXT)
        self.assertGreater(len(named), 30)
        for kind, name in named:
            with self.subTest(name):
                if kind == "scene":
                    self.assertIn(name, names)
                else:
                    file, test = name.split(".")
                    self.assertRegex(sources[file], rf"(?m)^    def {test}\(self")

    def test_every_weak_point_has_its_line(self):
        for n in range(1, 34):
            self.assertEqual(len(re.findall(rf"(?m)^\| S{n:02} ", self.TEXT)), n != 18, f"S{n:02}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "--buffer", *sys.argv[1:]])
