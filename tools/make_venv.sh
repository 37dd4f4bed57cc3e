#!/bin/sh
# Create a virtual environment with the first Python >= 3.10 found. Usage: make_venv.sh DIRECTORY [PYTHON]
set -eu
directory=$1
wanted=${2:-}

good() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; }

if [ -n "$wanted" ]; then
    good "$wanted" || { echo "make: PYTHON=$wanted is not a working Python 3.10 or newer; name another or leave PYTHON out" >&2; exit 2; }
    python=$wanted
else
    python=
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.14 python; do
        if good "$candidate"; then python=$candidate; break; fi
    done
    [ -n "$python" ] || { echo "make: Paceline needs Python 3.10 or newer and found none; install one (Debian, Ubuntu: apt-get install python3 python3-venv) or name it with PYTHON=/path/to/python" >&2; exit 2; }
fi

if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "make: $python has no venv module; install it (Debian, Ubuntu: apt-get install python$version-venv) and run make again" >&2
    exit 2
fi
rm -rf "$directory"
"$python" -m venv "$directory"
echo "$("$directory/bin/python" -V) in $directory"
