"""Makes PyPI's torch, which is built for CUDA, loadable where there is no CUDA library.

usage: stubs.py SITE_PACKAGES        needs a C compiler and readelf

For each library that torch's own need and nobody has, a small one is written into torch/lib: all symbols that torch takes from
it, in the versions that it asks for, each a function that returns cudaErrorNoDevice. torch.cuda.is_available() is then False.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100
# Symbols without a version that are CUDA's; others (Python's, libc's) are the process's own affair.
CUDA = re.compile(r"_*(cu|nccl|nvrtc|nvshmem|nvtx)|_Z\w*nvshmem")


def readelf(flags, library):
    return subprocess.run(["readelf", "-W", *flags, library], check=True, capture_output=True, text=True).stdout


class Library:
    """What one shared object needs, defines and leaves open."""

    def __init__(self, path):
        self.needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf(["-d"], path))
        self.defined, self.open = set(), defaultdict(set)  # version, or "": names
        self.versions = {}  # of others: version: library
        for line in readelf(["-V"], path).splitlines():
            if m := re.search(r"File: (\S+)", line):
                library = m[1]
            elif m := re.search(r"Name: (\S+) .*Flags: \S+ .*Version: \d+", line):
                self.versions[m[1]] = library
        for line in readelf(["--dyn-syms"], path).splitlines():
            fields = line.split()
            if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
                continue
            name, _, version = fields[7].partition("@")
            if fields[6] != "UND":
                self.defined.add(name)
            elif fields[4] == "GLOBAL":
                self.open[version.lstrip("@")].add(name)


def present():
    """Libraries that the loader knows by itself."""
    env = {**os.environ, "PATH": os.environ["PATH"] + ":/sbin:/usr/sbin"}
    listed = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True, env=env)
    return set(re.findall(r"^\s+(\S+)", listed.stdout, re.M))


def missing_symbols(libraries, folder):
    """Missing library: version: names. What has no version goes into any missing library that its user needs."""
    known = present() | {p.name for p in folder.iterdir()}
    defined = set().union(*(l.defined for l in libraries))
    missing = {n: defaultdict(set) for l in libraries for n in l.needed if n not in known}
    for library in libraries:
        own = [n for n in library.needed if n in missing]
        for version, names in library.open.items():
            if version:
                if (owner := library.versions.get(version)) in missing:
                    missing[owner][version] |= names
            elif own:
                missing[own[0]][""] |= {n for n in names - defined if CUDA.match(n)}
    return missing


def write(path, versions):
    with tempfile.TemporaryDirectory() as work:
        source, script = Path(work, "stub.c"), Path(work, "stub.map")
        names = sorted(set().union(*versions.values()))
        source.write_text("".join(f"int {n}(void) {{ return {NO_DEVICE}; }}\n" for n in names) or "typedef int nothing;\n")
        script.write_text("".join(f"{v} {{ global: {'; '.join(sorted(n))}; }};\n" for v, n in versions.items() if v and n))
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-nostdlib", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}"]
        command += ["-o", path, source]
        if script.stat().st_size:
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)
    return len(names)


def main(site):
    folder = Path(site, "torch", "lib")
    made = folder / ".kvlease-stubs"
    for name in made.read_text().split() if made.exists() else ():
        folder.joinpath(name).unlink(missing_ok=True)
    missing = missing_symbols([Library(p) for p in sorted(folder.glob("*.so*"))], folder)
    made.write_text("\n".join(missing))
    count = sum(write(folder / name, versions) for name, versions in missing.items())
    print(f"{len(missing)} stub libraries, {count} symbols")


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
