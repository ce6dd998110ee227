#!/usr/bin/env bash
# What of kvlease needs a GPU, on a machine that has one: builds, kvlease doctor, the demo with its caches on GPUs, contexts, the limits of what
# can be registered, registering again, kvlease bench. It writes one report, in Markdown. docs/deploy-infiniband.md has more.
#
# Usage: deploy/gpu-check.sh [--out FILE] [--steps LIST] [--limit SPAN] [--build DIR] [--fake]
#   --out FILE    the report, absolute or from the folder that the script was started in; build/gpu-check.md of the tree if not given. The run that docs/gpu-report.md waits for is made with --out docs/gpu-report.md
#   --steps LIST  some of build,doctor,demo,contexts,limits,again,bench; all if not given
#   --limit SPAN  the most that a step may take, as timeout(1) has it: 10m
#   --build DIR   what is built already, absolute or from that folder; without it the first step is `make deps build`
#   --fake        on fakes of driver and management library, which shows that this script works and nothing else; the report says so
#
# Exit code: 0: every step has passed, or was left out with a reason; 1: one has failed, and the report has it; 2: there is no GPU, or a wrong
# argument, and nothing was run. A step that fails ends no other.
# Needs Go, a C compiler, make, and for `make deps` pip with a package index.
set -uo pipefail
began_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
tree=${KVLEASE_GPU_CHECK_TREE-} # where /dev and /sys are; tests have their own

refuse() {
	echo "gpu-check: $1" >&2
	exit 2
}

# A path of the caller's, who is in another folder than this script.
from_there() {
	[[ $1 = /* ]] || printf '%s/' "$began_in"
	printf '%s\n' "$1"
}

all=build,doctor,demo,contexts,limits,again,bench
out=$PWD/build/gpu-check.md limit=10m built='' fake='' steps=$all
while [ $# -gt 0 ]; do
	case $1 in
	--fake) fake=1 ;;
	--out | --limit | --build | --steps)
		[ -n "${2-}" ] || refuse "$1 needs a value"
		case $1 in
		--steps) steps=$2 ;;
		--out) out=$(from_there "$2") ;;
		--limit) limit=$2 ;;
		--build) built=$(from_there "$2") ;;
		esac
		shift
		;;
	-h | --help)
		sed -n '2,/^set /s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
		exit 0
		;;
	*) refuse "there is no $1: --out FILE, --steps LIST, --limit SPAN, --build DIR, --fake" ;;
	esac
	shift
done
timeout "$limit" true 2>/dev/null || refuse "--limit is $limit, wanted: a span as timeout(1) has it, 10m"
[[ $limit != *[0-9] ]] || limit+=s
mapfile -td, names < <(printf '%s' "$steps")
for name in "${names[@]}"; do # an empty one, too: a run of no steps would have passed
	[[ -n $name && ,$all, = *",$name,"* ]] || refuse "--steps has \"$name\", wanted: some of $all"
done
asked() { [[ ,$steps, = *",$1,"* ]]; }
build=$(realpath -m "${built:-build}")
[ -z "$built" ] || [ -x "$build/kvlease" ] || refuse "--build is $built, and no kvlease is there: make deps build makes build/kvlease"

# ---- is there a GPU ----

why_none() {
	local bus
	compgen -G "$tree/dev/nvidia[0-9]*" >/dev/null || {
		for bus in "$tree"/sys/bus/pci/devices/*; do
			# a display controller (class 03) of NVIDIA's
			[[ $(cat "$bus/vendor" 2>/dev/null) = 0x10de && $(cat "$bus/class" 2>/dev/null) = 0x03* ]] || continue
			echo "the GPU at ${bus##*/} has no /dev/nvidia0: load the driver (nvidia-smi does), or give the container its GPUs (--gpus all)"
			return
		done
		echo "there is no NVIDIA GPU on the PCI bus and no /dev/nvidia0"
		return
	}
	[ -n "${KVLEASE_CUDA-}" ] || ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1' || ls "$tree"/usr/lib*/libcuda.so.1 "$tree"/usr/lib/*/libcuda.so.1 >/dev/null 2>&1 ||
		echo "there is a GPU and no libcuda.so.1: install the driver, give the container NVIDIA_DRIVER_CAPABILITIES=compute,utility, or name the file by KVLEASE_CUDA"
}

# How many GPUs CUDA sees.
gpus() {
	local files=("$tree"/dev/nvidia[0-9]*) seen n=0
	[ -z "$fake" ] || { echo 2 && return; }
	[ -n "${CUDA_VISIBLE_DEVICES+set}" ] || { echo "${#files[@]}" && return; }
	IFS=, read -ra seen <<<"$CUDA_VISIBLE_DEVICES"
	for name in "${seen[@]}"; do # up to the first that is none: NVIDIA, CUDA programming guide, "CUDA Environment Variables"
		[[ $name =~ ^([0-9]|GPU-|MIG-) ]] || break
		n=$((n + 1))
	done
	echo "$n"
}

if [ -z "$fake" ]; then
	why=$(why_none)
	[ -n "$why" ] || [ "$(gpus)" -gt 0 ] || why="CUDA_VISIBLE_DEVICES is \"$CUDA_VISIBLE_DEVICES\", which leaves no GPU: unset it, or name one"
	[ -z "$why" ] || refuse "$why. Nothing was run. --fake tries this script without a GPU"
fi

# Asked before hours of work: a report that cannot be written is lost. What is no file is held open from here on, since a reader takes a close for
# the end; to is its descriptor.
to='' at=$(realpath -m "$out") # behind links
no_place() { refuse "--out $out $1. Nothing was run"; }
if [[ $out = /dev/stdout || $out = /dev/stderr || $out =~ ^/(dev|proc/self)/fd/([0-9]+)$ ]]; then
	case $out in /dev/stdout) fd=1 ;; /dev/stderr) fd=2 ;; *) fd=${BASH_REMATCH[2]} ;; esac
	{ exec {to}>&"$fd"; } 2>/dev/null || no_place 'is not open'
elif [ -p "$out" ]; then
	# An open for both ends waits for nobody, and once that is closed the empty line with which the report begins shows whether anybody reads.
	{ exec {both}<>"$out" {to}>"$out" {both}<&-; } 2>/dev/null && (echo >&"$to") 2>/dev/null || no_place 'is a pipe that nobody reads: start its reader first'
elif [ -c "$out" ]; then
	{ exec {to}>"$out"; } 2>/dev/null || no_place 'cannot be written: name a file in a folder that can be'
else
	there=''
	[ ! -e "$out" ] || there=1
	{ [ -f "$out" ] || [ -z "$there" ]; } && mkdir -p "$(dirname "$at")" 2>/dev/null && { : >>"$at" && : >"$at.part"; } 2>/dev/null && rm -f "$at.part" ||
		no_place 'cannot be written: name a file in a folder that can be'
	[ -n "$there" ] || rm -f "$at"
fi

# ---- steps ----

work=$(mktemp -d "${TMPDIR:-/tmp}/kvlease-gpu-check.XXXXXX") || exit 2
mark="GPU_CHECK_WORK=$work" # in the environment of all that a step starts
failed=0 child='' interrupted='' shown=''
table='' sections='' # of the report, which finds room at its end alone

# Processes that a step has started and that live.
left() {
	local p
	for p in /proc/[0-9]*; do
		tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -qxF "$mark" && echo "${p#/proc/}"
	done
}

# Ends what a step has left, by number.
end_left() {
	local pids
	pids=$(left)
	[ -z "$pids" ] || { echo "$pids" | xargs kill -KILL 2>/dev/null && echo "$pids" | wc -l; }
}

# Without names of this machine.
strip() { sed -e "s|$PWD/||g" -e "s|$work|WORK|g" -e "s|${HOME:-/nonexistent}/|~/|g"; }

note() { # title, outcome, seconds, command, file with output
	table+=$(printf '| %s | %s | %s s |' "$1" "$2" "$3")$'\n'
	sections+=$(
		printf '\n## %s\n\n%s' "$1" "$2"
		[ -z "$4" ] || printf ", after %s s: \`%s\`" "$3" "$(printf '%s\n' "$4" | strip)"
		printf '\n'
		[ ! -s "$5" ] || {
			printf '\n~~~~\n'
			# without colours, and what a terminal overwrites
			sed -e 's/\x1b\[[0-9;]*[A-Za-z]//g' -e 's/.*\r\(.\)/\1/' "$5" | tr -d '\0' | strip |
				awk 'NR <= 40 { print } NR > 40 { last[NR] = $0 } END { first = NR - 159 > 41 ? NR - 159 : 41
					if (first > 41) print "... " first - 41 " lines left out ..."
					for (i = first; i <= NR; i++) print last[i] }'
			printf '~~~~\n'
		}
	)$'\n'
	echo "gpu-check: $1: $2" >&2
}

step() { # title, command
	local title=$1 log="$work/log" began=$SECONDS rc=0 outcome=passed n
	shift
	[ -z "$interrupted" ] || { skip "$title" "the run was interrupted" && return; }
	env "$mark" timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null &
	child=$!
	while :; do # a trap ends a wait before the step
		{ wait "$child"; } 2>/dev/null # of a child that is killed bash says so
		rc=$?
		kill -0 "$child" 2>/dev/null || break
	done
	child=''
	case $rc in
	0) ;;
	124 | 137) outcome="**failed**: longer than $limit" ;;
	*) outcome="**failed**, exit code $rc" ;;
	esac
	[ -z "$interrupted" ] || outcome='**interrupted**'
	n=$(end_left)
	[ -z "$n" ] || outcome="${outcome/passed/**failed**}, $n processes were left and have been ended"
	[ "$outcome" = passed ] || failed=1
	note "$title" "$outcome" $((SECONDS - began)) "${shown:-$*}" "$log"
	shown=''
}

skip() { note "$1" "left out: $2" 0 '' /dev/null; }

# ---- the report ----

machine() {
	local nic port
	printf -- '- %s, commit %s%s\n' "$(date -u +%Y-%m-%dT%H:%MZ)" "$(git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)" \
		"$(git rev-parse HEAD >/dev/null 2>&1 && { git diff --quiet HEAD -- 2>/dev/null || echo ', with changes'; })"
	printf -- '- %s, %s processors, %s GiB, Linux %s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" \
		"$(awk '/^MemTotal/ { print int($2 / 1048576) }' /proc/meminfo)" "$(uname -r)"
	"$build/kvlease" version 2>/dev/null | sed -n -e "s|$PWD/||g" -e 's/^nixl  */- NIXL /p'
	[ -z "$fake" ] || return
	printf -- '- driver: %s\n' "$(head -n 1 /proc/driver/nvidia/version 2>/dev/null || echo 'no /proc/driver/nvidia/version')"
	nvidia-smi --query-gpu=index,name,memory.total,pci.bus_id,driver_version --format=csv,noheader 2>&1 | sed 's/^/- GPU /'
	for nic in /sys/class/infiniband/*; do
		for port in "$nic"/ports/*; do
			[ ! -e "$port/rate" ] || printf -- '- NIC %s port %s: %s, %s\n' "${nic##*/}" "${port##*/}" "$(cat "$port/state")" "$(cat "$port/rate")"
		done
	done
}

report() {
	if [ -n "$fake" ]; then
		printf '# kvlease on fakes\n\n**Made on fakes of the CUDA driver and of the management library. No GPU and no NIC was asked: this shows that the script works, and nothing of hardware.'
		printf ' Results from real hardware are still to come.**\n\n'
	else
		printf '# kvlease on GPUs\n\nMade by deploy/gpu-check.sh on this machine:\n\n'
	fi
	machine
	printf '\n| step | outcome | |\n|---|---|---|\n'
	printf '%s%s' "$table" "$sections"
}

# Puts the report where it was wanted: in place of what was there once all of it is on the disk.
put() {
	if [ -n "$to" ]; then
		printf '%s\n' "$text" | timeout 60 cat >&"$to"
	else
		mkdir -p "$(dirname "$at")" && printf '%s\n' "$text" >"$at.part" && mv -f "$at.part" "$at" || { rm -f "$at.part" && return 1; }
	fi
}

# shellcheck disable=SC2329 # by the trap below
finish() {
	[ -z "$child" ] || kill -TERM "$child" 2>/dev/null
	end_left >/dev/null
	rm -rf "$work"
}
trap finish EXIT
trap 'interrupted=1 failed=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' INT TERM HUP

# ---- what is run ----

if [ -n "$fake" ]; then
	export KVLEASE_CUDA="$build/fake/libfakecuda.so" KVLEASE_NVML="$build/fake/libfakenvml.so"
	export KVL_FAKE_NVML="${KVL_FAKE_NVML-gpu 0 0000:1b:00.0 fake;gpu 1 0000:1c:00.0 fake}"
else
	export KVLEASE_GPU=1 # for cuda/hardware
fi
export KVLEASE_CORE="$build/libkvlease-core.so" NO_COLOR=1
count=$(gpus)
# The tests are built with whatever else is, and whenever they are asked for.
if asked build || asked contexts || asked limits || asked again; then
	compile="go test -c -o $work/hardware.test ./cuda/hardware"
	if [ -n "$built" ]; then
		shown="$compile; the rest was built before: $built"
		step 'Build' bash -c "$compile"
	else
		shown="make deps build; $compile"
		step 'Build' bash -c "make deps build && $compile"
	fi
fi

if asked doctor && [ -n "$fake" ]; then
	step 'Doctor' "$build/kvlease" doctor --no-load # UCX's module for CUDA finds no driver
elif asked doctor; then
	step 'Doctor' "$build/kvlease" doctor
	step 'Settings of GPU 0' "$build/kvlease" doctor --env 0
fi

# One step over one GPU and one over two.
over_gpus() { # title, command
	local title=$1
	shift
	step "$title, one GPU" "$@" --device 0,0
	if [ "$count" -lt 2 ]; then
		skip "$title, two GPUs" "there is one GPU"
	else
		step "$title, two GPUs" "$@" --device 0,1
	fi
}

if asked demo && [ -n "$fake" ]; then
	over_gpus 'Demo' "$build/kvlease" demo --svg "$work/demo.svg" --memory fakecuda --only b
elif asked demo; then
	over_gpus 'Demo' "$build/kvlease" demo --svg "$work/demo.svg" --memory vram
fi

hardware() { # step, title, pattern of its tests
	! asked "$1" || {
		shown="go test ./cuda/hardware -v -run '$3'"
		step "$2" env -C cuda/hardware "$work/hardware.test" -test.v -test.timeout 1h -test.run "$3"
	}
}
hardware contexts 'Contexts' 'AContext|AThread|RegisteredMemory'
hardware limits 'Limits of registration' 'WhatIsNoCache|RegionsThatTouch|Sizes|TheWindow'
hardware again 'Registering again' 'SleepAndWake|ReadsInFlight'

if asked bench && [ -n "$fake" ]; then
	step 'Bench, host memory' "$build/kvlease" bench --block 4K --count 1,4 --rounds 1 --samples 2 --burst 20
	skip 'Bench' "NIXL has no way to the memory of the fakes"
elif asked bench; then
	step 'Bench, host memory' "$build/kvlease" bench
	over_gpus 'Bench' "$build/kvlease" bench --memory vram
fi

text=$(report)
put 2>/dev/null || {
	if kept=$(mktemp "${TMPDIR:-/tmp}/kvlease-gpu-check-XXXXXX.md" 2>/dev/null) && printf '%s\n' "$text" 2>/dev/null >"$kept"; then
		kept="It is kept in $kept"
	else
		rm -f "$kept"
		kept="It is lost, since ${TMPDIR:-/tmp} has no room for it"
	fi
	echo "gpu-check: the report cannot be written to $out: make room there, or name another file by --out. $kept" >&2
	exit 1
}
echo "gpu-check: $out" >&2
exit $failed
