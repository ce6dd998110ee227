#!/usr/bin/env bash
# Fetch the Python files of a pinned vLLM whose wheel is for CUDA only: its scheduler and connector run over the torch of deps-vllm.
#
# Usage: tests/vllm/classes/deps.sh FOLDER     FOLDER/vllm is what is imported
# Needs: what tests/vllm/deps.sh has installed. The wheel is 0.5 GB; 40 MB of it stay.
set -euo pipefail

version=0.33.0
hash=sha256:4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../.." && pwd)
out=${1:?usage: deps.sh FOLDER}
python=${KVLEASE_VLLM:-$root/.deps/vllm}/venv/bin/python

[ "$(cat "$out/.kvlease-vllm" 2>/dev/null)" = "$version $hash" ] && exit 0
. "$root/tests/vllm/needs.sh"
rm -rf "$out"
mkdir -p "$out/wheel"
room "$out" 700
room "${TMPDIR:-/tmp}" 600
echo "deps-vllm: Python files of vLLM $version into $out, 0.5 GB are fetched" >&2
echo "vllm==$version --hash=$hash" >"$out/wheel/requirements.txt"
"$python" -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary=:all: --require-hashes \
	--dest "$out/wheel" -r "$out/wheel/requirements.txt" >"$out/pip.log" 2>&1 || {
	tail -n 20 "$out/pip.log" | sed 's/^/  pip: /' >&2
	die "pip could not fetch vLLM $version." "$no_index"
}
"$python" - "$out" <<'PYTHON'
import pathlib, sys, zipfile

out = pathlib.Path(sys.argv[1])
(wheel,) = (out / "wheel").glob("*.whl")
with zipfile.ZipFile(wheel) as z:
    z.extractall(out, [n for n in z.namelist() if n.startswith("vllm/") and n.endswith((".py", ".json", ".jinja"))])
PYTHON
rm -r "$out/wheel"
printf '%s\n' "$version $hash" >"$out/.kvlease-vllm"
