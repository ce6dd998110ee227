"""From samples to the table, the JSON file and bench/README.md."""

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
from pathlib import Path

import rows
import whole

HERE = Path(__file__).parent
FLOOR = 1.0  # ns: what a program prints where a difference of two times is not above nothing


class Loads:
    """Load and steal time over the run: a shared machine's figures mean nothing without them."""

    def __init__(self):
        self.start = self.stat()
        self.by_section = {}

    @staticmethod
    def stat():
        ticks = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(ticks), ticks[7]

    def note(self, section):
        self.by_section[section] = os.getloadavg()[0]

    def last(self):
        return list(self.by_section.values())[-1]

    def steal(self):
        total, steal = self.stat()
        return 100 * (steal - self.start[1]) / max(total - self.start[0], 1)


def first_line(*cmd):
    try:
        return subprocess.run(cmd, capture_output=True, text=True, cwd=HERE).stdout.splitlines()[0].strip()
    except (OSError, IndexError):
        return "?"


def machine():
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "go": first_line("go", "env", "GOVERSION"),
        "cc": first_line("cc", "--version"),
        "python": platform.python_version(),
        "ucx_tls": os.environ.get("UCX_TLS", "default"),
    }


def summary(values):
    s = sorted(values)
    return {
        "median": statistics.median(s),
        "min": s[0],
        "max": s[-1],
        "p99": s[min(len(s) - 1, int(len(s) * 0.99))],
        "p999": s[min(len(s) - 1, int(len(s) * 0.999))],
        "n": len(s),
    }


def show(v, unit):
    if unit == "bytes":
        return f"{v:,.0f} B"
    if unit in ("%", "/s", "threads"):
        return f"{v:.3g} {unit}" if v < 1000 else f"{v:,.0f} {unit}"
    for limit, factor, name in ((1e3, 1, "ns"), (1e6, 1e3, "µs"), (1e9, 1e6, "ms"), (float("inf"), 1e9, "s")):
        if v < limit:
            return f"{v / factor:.3g} {name}"


def spread(s, row):
    if row.tail:
        last = ("p99.9", s["p999"]) if s["n"] >= 1000 else ("max", s["max"])  # one in a thousand of fewer is the greatest
        return f"p50 {show(s['median'], row.unit)}, p99 {show(s['p99'], row.unit)}, {last[0]} {show(last[1], row.unit)}"
    if s["n"] == 1:
        return show(s["median"], row.unit)
    return f"{show(s['median'], row.unit)} ({show(s['min'], row.unit)} – {show(s['max'], row.unit)})"


def compare(row, ours, best):
    """How many times better ours is than the best peer, and whether it is only known that it is at least that.

    A difference that is not above nothing is no divisor: what can be told then is how far the peer is above our greatest figure. None: nothing can be told."""
    if best is None or min(ours["max"], best["median"]) <= 0:
        return None, False
    if row.more:
        return ours["median"] / best["median"], False
    if row.unit == "time" and best["median"] <= FLOOR:
        return None, False
    if row.unit == "time" and ours["median"] <= FLOOR:
        return (best["median"] / ours["max"], True) if ours["max"] > FLOOR else (None, False)
    return (best["median"] / ours["median"], False) if ours["median"] > 0 else (None, False)


class Result:
    def __init__(self, bench, loads):
        self.bench, self.loads = bench, loads
        self.date = datetime.datetime.now(datetime.timezone.utc)
        self.commit = first_line("git", "rev-parse", "--short=10", "HEAD")
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, cwd=HERE)
        if any(not line[3:].startswith("bench/") for line in changed.stdout.splitlines()):
            self.commit += "+"  # what was measured is not in any commit
        self.rows = [r for r in (self.row(r) for r in rows.rows()) if r is not None]

    def row(self, row):
        samples = self.bench.samples
        if row.ours not in samples or row.less and row.less not in samples:
            return None
        values = [v * row.scale for v in samples[row.ours]]
        if row.less:
            values = [v - w * row.scale for v, w in zip(values, samples[row.less])]
        ours = summary(values)
        others = []
        for project, what, name, scale in row.peers:
            if name in samples:
                others.append({"project": project, "what": what, **summary([v * scale for v in samples[name]])})
        missing = sorted({p[0] for p in row.peers} & set(self.bench.missing))
        # The best of the first project decides; the others stand beside it.
        rivals = [p for p in others if p["project"] == row.peers[0][0]]
        best = (max if row.more else min)(rivals, key=lambda p: p["median"], default=None)
        ratio, least = compare(row, ours, best)
        met = None
        if row.limit is not None:
            met = ours["median"] <= row.limit
        elif row.ratio is not None and ratio is not None and (ratio >= row.ratio or not least):
            met = ratio >= row.ratio
        return {"row": row, "ours": ours, "others": others, "best": best, "ratio": ratio, "least": least, "met": met, "missing": missing}

    def lines(self):
        """The cells of each row: what, target, ours, peer, ratio, met."""
        for r in self.rows:
            row = r["row"]
            shown = [p for p in r["others"] if p is r["best"] or p["project"] != row.peers[0][0] or row.section == "kill"]
            peers = [f"{', '.join(filter(None, (p['project'], p['what'])))}: {spread(p, row)}" for p in shown]
            peers += [f"{m}: not in this run" for m in r["missing"]]
            met = {True: "met", False: "**missed**", None: ""}[r["met"]]
            ratio = "" if r["ratio"] is None or row.tail else f"{'> ' if r['least'] else ''}{r['ratio']:.3g}"
            yield [row.what, row.target, spread(r["ours"], row), "; ".join(peers), ratio, met]

    def heading(self):
        m = machine()
        loads = ", ".join(f"{k} {v:.1f}" for k, v in self.loads.by_section.items())
        return [
            f"{self.date:%Y-%m-%d %H:%M} UTC, commit {self.commit}, {m['cpu']}, {m['cores']} cores, Linux {m['kernel']}, {m['go']}, {m['cc']}, "
            f"Python {m['python']}, UCX_TLS {m['ucx_tls']}.",
            f"Rounds: {self.bench.rounds}, in turn. Steal time {self.loads.steal():.1f} %. Load at the end of each section: {loads}.",
            *(f"Missing peer: {name}: {why}." for name, why in self.bench.missing.items()),
        ]

    def text(self):
        out = ["", *self.heading(), ""]
        for what, target, ours, peer, ratio, met in self.lines():
            out.append(f"{what}" + (f"  [{target}: {met.strip('*') or 'no peer'}]" if target else ""))
            out.append(f"    ours  {ours}")
            if peer:
                out.append(f"    peer  {peer}" + (f"   ratio {ratio}" if ratio else ""))
        judged = [r["met"] for r in self.rows if r["met"] is not None]
        out += ["", f"{sum(judged)} of {len(judged)} targets met."]
        return "\n".join(out)

    @staticmethod
    def saved(r):
        """A row as internal/figures reads it. What says nothing is left out."""
        rounded = lambda s: {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in s.items()}  # noqa: E731
        row = r["row"]
        extra = {
            "better": "more" if row.more else None, "limit": row.limit, "ratio_target": row.ratio, "tail": row.tail, "family": row.family if row.at else None,
            "at": row.at if row.family else None,
        }
        return {
            "section": row.section, "what": row.what, "target": row.target, "unit": {"bytes": "B", "time": "ns"}.get(row.unit, row.unit),
            **{k: v for k, v in extra.items() if v},
            "ours": rounded(r["ours"]), "peers": [rounded(p) for p in r["others"]],
            "ratio": None if r["ratio"] is None else round(r["ratio"], 4), **({"ratio_is_least": True} if r["least"] else {}), "met": r["met"],
        }

    def save(self, name="", folder=HERE / "results"):
        folder.mkdir(exist_ok=True)
        data = {
            "date": self.date.isoformat(timespec="seconds"),
            "commit": self.commit,
            "machine": machine(),
            "rounds": self.bench.rounds,
            "steal_percent": round(self.loads.steal(), 2),
            "load": {k: round(v, 2) for k, v in self.loads.by_section.items()},
            "missing": self.bench.missing,
            "rows": [self.saved(r) for r in self.rows],
        }
        path = folder / f"{name}{self.date:%Y-%m-%d}-{self.commit.rstrip('+')}.json"
        text = json.dumps(data, ensure_ascii=False, indent=1)
        text = re.sub(r'\{\n\s+("(?:project|median)"[^{}]*)\}', lambda m: "{" + re.sub(r"\s*\n\s*", " ", m[1]).strip() + "}", text)  # one line a summary
        whole.write(path, text + "\n")
        return path

    def put_into_readme(self, mark="table"):
        path = HERE / "README.md"
        table = ["| what | target | ours: median (range) | peer | peer / ours | |", "|---|---|---|---|---|---|"]
        table += ["| " + " | ".join(cells) + " |" for cells in self.lines()]
        body = "\n".join([*(line + "\n" for line in self.heading()), *table])
        text = path.read_text()
        new = re.sub(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda m: m[1] + body + "\n" + m[2], text, flags=re.S)
        whole.write(path, new)
