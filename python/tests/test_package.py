"""The package itself: what importing it does, and that its parts say the same."""

import inspect
import os
import re
import shutil
import subprocess
import sys

import kvlease as k
import kvlease.errors
import pytest

HEADER = os.path.join(os.path.dirname(__file__), "..", "..", "cmd", "libkvlease", "include", "kvlease.h")


def header_constants():
    with open(HEADER) as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    found = dict(re.findall(r"\bKVL_((?:FREED|READ|EV|EVF)_\w+) = (\d+)", text))
    found |= dict(re.findall(r"#define KVL_((?:EVF_|ID_|DELTA_MAX)\w*) (\d+)u", text))
    return {name: int(value) for name, value in found.items()}


def test_constants_are_those_of_the_header():
    wanted = header_constants()
    assert len(wanted) > 30
    assert {name: getattr(k, name) for name in wanted} == wanted
    assert {n for n in dir(k) if re.match("(EV|EVF|FREED|READ)_", n)} <= set(wanted)


def test_each_status_has_its_exception():
    for i, type in enumerate(kvlease.errors.BY_STATUS):
        assert type.status == -i and type.name == k.status_name(-i) and issubclass(type, k.Error)
    assert k.status_name(-len(kvlease.errors.BY_STATUS)) == "unknown status" == k.status_name(1 << 40)
    with open(HEADER) as f:
        statuses = set(re.findall(r"\b(KVL_ERR_\w+) = -\d+", f.read()))
    assert {type.name for type in kvlease.errors.BY_STATUS[1:]} == statuses
    assert issubclass(k.Invalid, ValueError) and issubclass(k.Timeout, TimeoutError) and issubclass(k.NoMemory, MemoryError)


def test_the_version_is_the_header_s_abi():
    assert k.version() == "0.1.0" and k.abi_version() == 1


def python(script, **env):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env={**os.environ, **env})


def test_importing_the_package_loads_nothing_native():
    run = python("""
import sys, kvlease, kvlease.errors
assert not any("kvlease" in line for line in open("/proc/self/maps")), "mapped"
assert "ctypes" not in sys.modules and kvlease.Region and kvlease.Error and "Context" in dir(kvlease)
kvlease.version()
maps = open("/proc/self/maps").read()
assert "libkvlease.so" in maps and "libkvlease-core" not in maps, "the core comes with the first context"
kvlease.Context({"transport": "loopback"}).close()
assert "libkvlease-core.so" in open("/proc/self/maps").read()
""")
    assert run.returncode == 0, run.stderr


def test_the_source_folder_says_what_it_lacks():
    source = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "src"))
    run = python("import kvlease; kvlease.Context", PYTHONPATH=source)
    assert run.returncode != 0 and "ImportError" in run.stderr and "make python" in run.stderr and source in run.stderr, run.stderr


def test_names_that_are_not_there_are_attribute_errors():
    for name in ("nonsense", "_private", "KVL_OK"):
        with pytest.raises(AttributeError, match=name):
            getattr(k, name)
    assert not hasattr(k, "__wrapped__")
    assert set(k.__all__) <= set(dir(k))


def test_another_library_can_be_named():
    run = python("import kvlease; kvlease.version()", KVLEASE_LIB="/nowhere/libkvlease.so")
    assert run.returncode != 0 and "/nowhere/libkvlease.so" in run.stderr
    here = os.path.dirname(k._kvlease.__file__) if hasattr(k, "_kvlease") else os.path.dirname(sys.modules["kvlease._kvlease"].__file__)
    library = os.path.join(here, "libkvlease.so.0")
    run = python("import kvlease; print(kvlease.version(), [l.split()[-1] for l in open('/proc/self/maps') if 'libkvlease.so' in l][0])",
                 KVLEASE_LIB=library)
    assert run.stdout.split() == [k.version(), os.path.realpath(library)], run.stderr


def test_a_core_that_is_not_there_is_named():
    run = python("import kvlease\ntry: kvlease.Context({})\nexcept kvlease.Unavailable as e: print(e)", KVLEASE_CORE="/nowhere/core.so")
    assert "/nowhere/core.so" in run.stdout


def test_the_package_may_be_imported_again():
    run = python("""
import sys, gc, kvlease
first = kvlease.Context({"transport": "loopback"})
producer, error = first.producer(), kvlease.Invalid
for name in [n for n in sys.modules if n.startswith("kvlease")]:
    del sys.modules[name]
import kvlease as again
gc.collect()
assert again.Context is not type(first)
with again.Context({"transport": "loopback"}): pass
try: producer.expect("")
except error: pass
first.close()
""")
    assert run.returncode == 0, run.stderr


def test_every_call_has_a_signature_and_a_text():
    for owner in (k.Context, k.Producer, k):
        for name, value in vars(owner).items():
            if name.startswith("_") or not callable(value) or inspect.isclass(value):
                continue
            assert inspect.signature(value) is not None and value.__doc__, name
    for type in (k.Context, k.Producer, k.Remote, k.Event, k.Region):
        assert type.__module__.startswith("kvlease") and type.__doc__


def test_the_stubs_say_what_there_is(tmp_path):
    package = os.path.dirname(k.__file__)
    os.mkdir(tmp_path / "kvlease")
    for name in os.listdir(package):
        if name != "vllm":  # which needs vLLM
            os.symlink(os.path.join(package, name), tmp_path / "kvlease" / name)
    (tmp_path / "allowed").write_text("kvlease._region.NamedTuple\n")  # the standard library's, which mypy knows as a class
    run = subprocess.run([sys.executable, "-m", "mypy.stubtest", "kvlease", "--ignore-missing-stub", "--allowlist", "allowed"],
                         capture_output=True, text=True, timeout=300, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path), "MYPYPATH": str(tmp_path)})
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_types_of_the_package_are_consistent(tmp_path):
    (tmp_path / "mypy.ini").write_text("[mypy]\npython_version = 3.10\n[mypy-vllm.*,torch.*,msgspec.*,numpy.*]\nignore_missing_imports = True\nfollow_imports = skip\n")
    shutil.copytree(os.path.dirname(k.__file__), tmp_path / "kvlease")  # beside other packages it would make mypy take those for sources, too
    run = subprocess.run([sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "kvlease"],
                         capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
