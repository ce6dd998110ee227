#!/usr/bin/env bash
# Install real vLLM engines that run on a CPU: a virtual environment, stub CUDA libraries, a tiny model. 0.8 GB are fetched.
#
# Usage: tests/vllm/deps.sh [folder]      .deps/vllm unless said
# Needs: CPython 3.11 with pip and venv, a C compiler, readelf, libnuma, x86-64 Linux, a package index, room on the disk. PYTHON311 names
# the interpreter.
# Quiet and offline when the folder already holds what is pinned; goes on where it was interrupted.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-$root/.deps/vllm}
. "$here/needs.sh"

[ "$(uname -sm)" = "Linux x86_64" ] || die "vLLM's wheel for CPUs and its pins are for x86-64 Linux, this is $(uname -sm)." "Remedy: SKIP_VLLM=1."

fits() {
	[ "$("$1" -c 'import sys; print(sys.implementation.name, *sys.version_info[:2])' 2>/dev/null)" = "cpython 3 11" ]
}
if [ -n "${PYTHON311:-}" ]; then
	fits "$PYTHON311" || die "PYTHON311=$PYTHON311 is no CPython 3.11, which the pinned wheels are made for." "Remedy: name another, or SKIP_VLLM=1."
	python=$PYTHON311
else
	for python in python3.11 python3 $("$root/python/pythons.sh") ""; do
		fits "$python" && break
	done
fi
[ -n "$python" ] || die "there is no CPython 3.11, which the pinned wheels are made for." "Remedy: install it, or name it in PYTHON311, or SKIP_VLLM=1."

stamp="$out/.kvlease-vllm"
pins=$(cat "$here"/{deps.sh,requirements.txt,stubs.py,model.py} | sha256sum | cut -d' ' -f1)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$pins" ] && exit 0
rm -f "$stamp"

command -v "${CC:-cc}" >/dev/null || die "there is no C compiler." "Remedy: install gcc, or name a compiler in CC."
command -v readelf >/dev/null || die "there is no readelf." "Remedy: install binutils."
if [ -z "$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep 'libnuma\.so\.1 .*x86-64')" ]; then
	{ [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && { apt-get install -y -q libnuma1 >/dev/null || { apt-get update -q && apt-get install -y -q libnuma1; }; }; } ||
		die "vLLM's kernels need libnuma.so.1." "Remedy: apt-get install libnuma1."
fi

"$python" -c 'import ensurepip, venv' 2>/dev/null || die "$python has no venv." "Remedy: install the package python3.11-venv."
mkdir -p "$out" && [ -w "$out" ] || die "$out cannot be written by $(id -un)." "Remedy: chown or remove it."
[ -x "$out/venv/bin/vllm" ] || { # not interrupted late, or with other pins
	room "$out" 2600 # all of it, when it is there
	room "${TMPDIR:-/tmp}" 1000 # pip's, until it has unpacked
}
echo "deps-vllm: 0.8 GB into $out, a few minutes" >&2
"$python" -m venv "$out/venv"
# pip has to compile: else every engine compiles all of vLLM at its start, and forgets it.
env -u PYTHONDONTWRITEBYTECODE "$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	--require-hashes -r "$here/requirements.txt" >"$out/pip.log" 2>&1 || {
	tail -n 20 "$out/pip.log" | sed 's/^/  pip: /' >&2
	die "pip could not install tests/vllm/requirements.txt." "$no_index"
}
"$python" "$here/stubs.py" "$("$out/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" >&2
"$out/venv/bin/python" "$here/model.py" "$out/tiny"
env -u PYTHONDONTWRITEBYTECODE "$out/venv/bin/python" -c 'import vllm.v1.engine.llm_engine' >"$out/import.log" 2>&1 || {
	tail -n 20 "$out/import.log" | sed 's/^/  python: /' >&2
	die "vLLM was installed but cannot be imported."
}
printf '%s\n' "$pins" >"$stamp"
