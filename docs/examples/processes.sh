#!/bin/sh
# A prefill and a decode engine of two ranks each, every host and rank a process of its own, over NIXL; the pipe is the router.
# 77, a skip: this machine has no NIXL. Where KVLEASE_REQUIRE names it, that is a failure.
engine=$1
said=$(mktemp)
trap 'rm -f "$said"' EXIT
{ "$engine" prefill --requests 12; echo "$?" >"$said.rc"; } 2>"$said" | "$engine" decode 2>"$said.d"
d=$?
p=$(cat "$said.rc")
cat "$said" "$said.d"
skip=$(grep -c KVL_ERR_UNAVAILABLE "$said")
rm -f "$said.rc" "$said.d"
if [ "$skip" -gt 0 ]; then
	case ",$KVLEASE_REQUIRE," in *,nixl,*) exit 1 ;; esac
	exit 77
fi
[ "$p" -eq 0 ] && [ "$d" -eq 0 ]
