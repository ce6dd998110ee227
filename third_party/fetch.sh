#!/usr/bin/env bash
# Fetch the pinned NIXL wheel and unpack it (it is not installed) into third_party/nixl.
#
# Usage: third_party/fetch.sh [folder]
# Needs: python3 with pip and a package index that pip is set up for. PYTHON names another interpreter.
# Quiet and offline when the folder already holds the pinned wheel. KVLEASE_NIXL_WHEEL names a wheel that is already
# here: it is checked against the same checksum.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/nixl}
arch=$(uname -m)
python=${PYTHON:-python3}

die() {
	printf 'fetch: %s\n' "$@" >&2
	exit 1
}

read -r package version sha wheel < <(awk -v a="$arch" '$1 == "nixl-cu12" && $3 == a { print $1, $2, $4, $5 }' "$here/versions.txt") || true
[ -n "${wheel:-}" ] || die "third_party/versions.txt pins no NIXL wheel for $arch." \
	"Remedy: install NIXL yourself and set KVLEASE_NIXL to its libnixl_capi.so, or add the wheel's checksum to versions.txt."

stamp="$out/.kvlease-wheel"
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$sha" ] && exit 0

command -v "$python" >/dev/null || die "there is no $python." "Remedy: install Python 3 with pip, or set PYTHON to an interpreter."

work=$(mktemp -d "${TMPDIR:-/tmp}/kvlease-fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

file=${KVLEASE_NIXL_WHEEL:-}
if [ -z "$file" ]; then
	"$python" -m pip --version >/dev/null 2>&1 || die "$python has no pip." \
		"Remedy: install it (package python3-pip), or set PYTHON, or put the wheel's path into KVLEASE_NIXL_WHEEL."
	echo "fetch: $package $version for $arch" >&2
	# The wheel is only unpacked, so its Python version need not be the one of this machine.
	abi=$(cut -d- -f3 <<<"$wheel")
	platform=${wheel##*-}
	"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--implementation cp --python-version "${abi#cp}" --abi "$abi" --platform "${platform%.whl}" \
		--dest "$work" "$package==$version" >"$work/log" 2>&1 || {
		sed 's/^/  pip: /' "$work/log" >&2
		die "pip could not download $package $version ($wheel)." \
			"Remedy: check the network and pip's index settings (pip config list), or download the wheel elsewhere and set KVLEASE_NIXL_WHEEL to it."
	}
	file=$work/$wheel
fi
[ -f "$file" ] || die "$file is not there."

got=$("$python" - "$file" <<'PY'
import hashlib, sys
h = hashlib.sha256()
with open(sys.argv[1], "rb") as f:
    for piece in iter(lambda: f.read(1 << 20), b""):
        h.update(piece)
print(h.hexdigest())
PY
)
[ "$got" = "$sha" ] || die "$(basename "$file") has the checksum $got," "but versions.txt pins $sha. Nothing was unpacked." \
	"Remedy: remove the file and fetch again; if the index serves another file, do not use it."

# Unpack beside the target and move at the end, so that a broken run leaves no half folder behind.
mkdir -p "$(dirname "$out")"
new=$(mktemp -d "$out.new.XXXXXX")
trap 'rm -rf "$work" "$new"' EXIT
"$python" -m zipfile -e "$file" "$new"
chmod 755 "$new"
printf '%s\n' "$sha" >"$new/.kvlease-wheel"
rm -rf "$out"
mv "$new" "$out"
echo "fetch: $package $version is in $out" >&2
