# For deps.sh here and in classes: what is missing is said in a line each of what and remedy.

die() {
	printf 'deps-vllm: %s\n' "$@" >&2
	exit 1
}

# room FOLDER MIB: its disk has so much left.
room() {
	local left
	left=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
	[ "$left" -ge "$2" ] || die "$1 has $left MiB left on its disk, $2 are needed." "Remedy: make room, or SKIP_VLLM=1."
}

no_index="Remedy: check the network and pip's index settings (pip config list); SKIP_VLLM=1 leaves these tests out."
