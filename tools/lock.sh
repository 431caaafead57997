#!/bin/sh
# lock.sh [UV-OPTION...] - write the lock files from pyproject.toml: with hashes, without any host.
#
# Pins that still fit are kept; `make lock UPGRADE=1` takes the newest of everything.
set -eu
uv=${UV:-}
if [ -z "$uv" ]; then
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    "${PYTHON:-python3}" -m venv "$scratch/venv"
    "$scratch/venv/bin/pip" --disable-pip-version-check --quiet install uv
    uv=$scratch/venv/bin/uv
fi
compile() {
    "$uv" pip compile --universal --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-header --quiet "$@"
}
compile pyproject.toml --all-extras --group dev -o dev.lock "$@"
compile pyproject.toml -c dev.lock -o requirements.lock
compile --group build -c dev.lock -o build.lock
sh tools/lock_client.sh "$uv"
echo "Wrote dev.lock, requirements.lock, build.lock and tests/compat/client.lock."
