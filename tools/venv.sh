#!/bin/sh
# venv.sh DIR editable|plain LOCK... - make DIR hold exactly these locks and the product.
#
# Does nothing when DIR is up to date: DIR/.stamp remembers what was installed from what.
# PYTHON names the interpreter for a new DIR (default: the first of python3, python3.14 …
# python3.11 that is new enough).
set -eu
dir=$1 mode=$2
shift 2

usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if usable "$name"; then
            command -v "$name"
            return
        fi
    done
    echo "No Python 3.11 or newer found. Install one, or name it: make PYTHON=/path/to/python3 …" >&2
    exit 1
}

# A plain install is a copy of the sources, an editable one points at them.
sources=
[ "$mode" = editable ] || sources=$(find src -name '*.py' -o -name '*.typed' -o -name '*.mako' | sort)
fingerprint="$mode ${PYTHON:-} $(pwd) $({ sed "/^\[tool.ruff\]/,\$d" pyproject.toml; cat "$@" $sources "$0"; } | cksum)"

# Where PYTHONDONTWRITEBYTECODE is set, every start would compile the product anew.
compile_sources() {
    [ "$mode" != editable ] || "$dir/bin/python" -m compileall -q src
}

if [ -x "$dir/bin/python" ] && usable "$dir/bin/python" &&
    [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$fingerprint" ]; then
    compile_sources
    exit 0
fi

if ! usable "$dir/bin/python" || ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    echo "Making $dir with $("$python" --version)."
    rm -rf "$dir"
    if ! "$python" -m venv "$dir"; then
        rm -rf "$dir"
        echo "$python can't make virtual environments; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
rm -f "$dir/.stamp"
requirements=
for lock in "$@"; do requirements="$requirements -r $lock"; done
echo "Installing $* into $dir."
pip="$dir/bin/python -m pip --disable-pip-version-check --quiet"
$pip install --require-hashes $requirements
target=.
[ "$mode" = plain ] || target="-e ."
$pip install --no-build-isolation --no-deps --force-reinstall $target
echo "$fingerprint" >"$dir/.stamp"
compile_sources
