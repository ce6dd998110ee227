#!/usr/bin/env bash
# Every CPython from 3.10 to 3.13 that is here and can make a virtual environment, one a minor version: on the PATH, else pyenv's.
set -u
for minor in 10 11 12 13; do
	for python in python3.$minor "$(command -v pyenv >/dev/null && pyenv root)"/versions/3.$minor.*/bin/python3; do
		if "$python" -c "import ensurepip, venv" 2>/dev/null; then
			echo "$python"
			break
		fi
	done
done
