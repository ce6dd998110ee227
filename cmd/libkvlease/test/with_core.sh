#!/bin/sh
# Runs a program over the real core; 77 if it is not built, which is a failure where KVLEASE_REQUIRE names `core`.
if [ ! -e "$KVLEASE_CORE" ]; then
	echo "the core is missing: $KVLEASE_CORE; make build-go makes it"
	case ",$KVLEASE_REQUIRE," in *,core,*) exit 1 ;; esac
	exit 77
fi
exec "$@"
