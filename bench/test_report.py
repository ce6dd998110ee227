"""What the table says of a row, and how results are written. `make test-static` runs it."""

import contextlib
import errno
import io
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
import report  # noqa: E402
import run  # noqa: E402
import whole  # noqa: E402
from rows import Row, rows  # noqa: E402


def judged(row, missing=(), **samples):
    """The row of a run with these samples, and its cells."""
    result = report.Result.__new__(report.Result)
    result.bench = types.SimpleNamespace(samples={k.replace("_", "."): v for k, v in samples.items()}, missing=dict.fromkeys(missing, "not here"))
    r = result.row(row)
    result.rows = [r]
    return r, next(result.lines())


PEER = [("vLLM", "", "peer", 1.0)]


class Sections(unittest.TestCase):
    def test_one_that_fails_takes_no_other_with_it_and_leaves_no_half_of_its_own(self):
        class Some:
            def __init__(self):
                self.samples = run.Samples()

            def one(self):
                self.samples.add("one", 1)

            def two(self):
                self.samples.add("two", 1)
                run.run(["sh", "-c", "echo nobody is there; exit 3"], 10)

            def three(self):
                self.samples.add("three", 1)

        bench, loads, said = Some(), report.Loads(), io.StringIO()
        with contextlib.redirect_stderr(said):
            failed = run.measure(bench, ["one", "two", "three"], loads)
        self.assertEqual((failed, dict(bench.samples), list(loads.by_section)), (["two"], {"one": [1.0], "three": [1.0]}, ["one", "three"]))
        self.assertIn("nobody is there", said.getvalue())


class Ratios(unittest.TestCase):
    def test_a_peer_that_takes_longer_is_above_one(self):
        r, cells = judged(Row("s", "w", "ours", target="≥ 2× less", ratio=2.0, peers=PEER), ours=[9, 10, 11], peer=[29, 30, 31])
        self.assertEqual((r["ratio"], r["least"], r["met"]), (3.0, False, True))
        self.assertEqual(cells[4:], ["3", "met"])

    def test_of_rates_the_greater_one_is_the_better(self):
        r, _ = judged(Row("s", "w", "ours", unit="/s", more=True, peers=[*PEER, ("vLLM", "again", "peer.again", 1.0)]), ours=[300], peer=[100], peer_again=[150])
        self.assertEqual((r["ratio"], r["best"]["what"]), (2.0, "again"))

    def test_what_is_not_above_nothing_is_no_divisor(self):
        goal = {"target": "≥ 20× less", "ratio": 20.0}
        for ours, peer, ratio, least, cell, met in (
            ([1, 1, 1000], [30000], 30.0, True, "> 30", True),  # at least that, by our greatest figure
            ([1, 1, 2000], [30000], 15.0, True, "> 15", None),  # it may be 20 or not
            ([1, 1, 1], [30000], None, False, "", None),  # nothing is known of our noise
            ([1, 200, 900], [1], None, False, "", None),  # the peer is not above nothing
            ([1, 200, 900], [400], 2.0, False, "2", False),
        ):
            r, cells = judged(Row("s", "w", "ours", peers=PEER, **goal), ours=ours, peer=peer)
            self.assertEqual((r["ratio"], r["least"], cells[4], r["met"]), (ratio, least, cell, met), (ours, peer))

    def test_one_byte_is_a_byte(self):
        r, cells = judged(Row("s", "w", "ours", unit="bytes", peers=PEER), ours=[1], peer=[69])
        self.assertEqual((r["ratio"], cells[4]), (69.0, "69"))

    def test_a_difference_of_two_may_be_below_nothing(self):
        r, cells = judged(Row("s", "w", "ours", less="poll", limit=5, peers=PEER), ours=[9, 10, 11], poll=[12, 12, 12], peer=[30])
        self.assertEqual((r["ratio"], r["met"], cells[4]), (None, True, ""))


class Rows(unittest.TestCase):
    def test_a_limit_is_met_by_the_median(self):
        for ours, met in (([1, 12, 99], True), ([11, 12.5, 13], False)):
            self.assertIs(judged(Row("s", "w", "ours", limit=12), ours=ours)[0]["met"], met)

    def test_of_latencies_the_last_is_one_in_a_thousand_where_there_are_so_many(self):
        for n, cell in ((999, "p50 500 ns, p99 990 ns, max 999 ns"), (2000, "p50 1 µs, p99 1.98 µs, p99.9 2 µs")):
            _, cells = judged(Row("s", "w", "ours", tail=True), ours=list(range(1, n + 1)))
            self.assertEqual(cells[2], cell)

    def test_a_row_without_samples_is_none_and_a_missing_peer_is_named(self):
        self.assertIsNone(report.Result.row(types.SimpleNamespace(bench=types.SimpleNamespace(samples={})), Row("s", "w", "ours")))
        _, cells = judged(Row("s", "w", "ours", ratio=1.0, peers=PEER), missing=["vLLM"], ours=[1])
        self.assertEqual(cells[3:], ["vLLM: not in this run", "", ""])

    def test_a_saved_row_has_what_the_gate_and_the_charts_read(self):
        r, _ = judged(Row("s", "w", "ours", unit="/s", more=True, ratio=2.0, family="f", at=10, peers=PEER), ours=[300], peer=[100])
        saved = report.Result.saved(r)
        self.assertEqual({k: saved[k] for k in ("better", "ratio_target", "family", "at", "unit")}, {"better": "more", "ratio_target": 2.0, "family": "f", "at": 10, "unit": "/s"})
        plain = report.Result.saved(judged(Row("s", "w", "ours"), ours=[3])[0])
        self.assertFalse({"better", "limit", "ratio_target", "tail", "family", "at", "ratio_is_least"} & set(plain))

    def test_names_are_given_once(self):
        keys = [(r.section, r.what) for r in rows()]
        self.assertEqual(len(keys), len(set(keys)))
        curve = [(r.family, r.at) for r in rows() if r.family and r.at]
        self.assertEqual([c for c in set(curve) if curve.count(c) > 1], [])


class Files(unittest.TestCase):
    def test_a_full_disk_is_told_and_what_was_there_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder).resolve() / "result.json"
            whole.write(path, "good")
            with mock.patch.object(os, "fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")), self.assertRaises(SystemExit) as end:
                whole.write(path, "half")
            self.assertEqual(end.exception.code, f"{path} cannot be written: No space left on device; make room in its folder, or have it writable")
            self.assertEqual({p.name: p.read_text() for p in path.parent.iterdir()}, {"result.json": "good"})


SAYS = '#include "pair.h"\nint main(void) { say("a", 1); return 0; }\n'


class Programs(unittest.TestCase):
    """A result that could not be written is an error of the program that had it: run.py would take the rest for all."""

    def test_a_full_disk_is_told(self):
        with tempfile.TemporaryDirectory() as tmp:
            root, exe, says = Path(__file__).parent.parent, Path(tmp, "program"), Path(tmp, "says.c")
            says.write_text(SAYS)
            for source, include, args in (
                (root / "bench/ring/ring_bench.c", "ringbuf/include", ["1000"]),
                (says, "cmd/libkvlease/include", []),
            ):
                cc = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{root / include}", f"-I{root / 'bench/pair'}", source, "-o", exe, "-pthread"]
                subprocess.run(cc, check=True)
                with open("/dev/full", "w") as full:
                    done = subprocess.run([exe, *args], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual((done.returncode, "No space left" in done.stderr), (1, True), (source, done.stderr))


if __name__ == "__main__":
    unittest.main()
