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

# On all cores, which pip does not do. A package may hold files of another Python: they don't matter.
compile_packages() {
    packages=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$dir/bin/python" -m compileall -qq -j 0 "$packages" || "$dir/bin/python" -m compileall -qq "$packages" || true
}

# The environment's own pip, or that of the Python it is made with: a copy takes seconds to make.
own_pip() { "$dir/bin/python" -m pip --version >/dev/null 2>&1; }
lent_pip() { "$1" -m pip --python "$dir/bin/python" --version >/dev/null 2>&1; }

make_environment() {
    if [ "$mode" = plain ] && "$python" -m venv --without-pip "$dir" 2>/dev/null && lent_pip "$python"; then
        return
    fi
    rm -rf "$dir"
    "$python" -m venv "$dir"
}

if [ -x "$dir/bin/python" ] && usable "$dir/bin/python" &&
    [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$fingerprint" ]; then
    compile_sources
    exit 0
fi

if ! usable "$dir/bin/python" || ! { own_pip || lent_pip "$(find_python)"; }; then
    python=$(find_python)
    echo "Making $dir with $("$python" --version)."
    rm -rf "$dir"
    if ! make_environment; then
        rm -rf "$dir"
        echo "$python can't make virtual environments; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
rm -f "$dir/.stamp"
requirements=
for lock in "$@"; do requirements="$requirements -r $lock"; done
echo "Installing $* into $dir."
if own_pip; then pip="$dir/bin/python -m pip"; else pip="$(find_python) -m pip --python $dir/bin/python"; fi
pip="$pip --disable-pip-version-check --quiet"
$pip install --no-compile --require-hashes $requirements
target=.
[ "$mode" = plain ] || target="-e ."
$pip install --no-compile --no-build-isolation --no-deps --force-reinstall $target
compile_packages
echo "$fingerprint" >"$dir/.stamp"
compile_sources
