#!/bin/sh
# test_client.sh PYTHON - make the environment of the released client that tests/compat drives.
#
# It lies outside the checkout, is made once for a lock, and is never part of the product's own.
# Where it can't be made, the tests that need it skip; with CI=true that is a failure.
set -eu
python=$1
lock=tests/compat/client.lock
cache=${NEMO_JOBS_TEST_CACHE:-$HOME/.cache/nemo-jobs-tests}
digest='import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest()[:12])'
dir=$cache/client-$("$python" -c "$digest" <"$lock")
[ ! -f "$dir/.complete" ] || exit 0
mkdir -p "$cache"
if command -v flock >/dev/null && [ -z "${NEMO_JOBS_CLIENT_LOCKED:-}" ]; then
    NEMO_JOBS_CLIENT_LOCKED=yes exec flock "$dir.lock" sh "$0" "$@"
fi
[ ! -f "$dir/.complete" ] || exit 0
echo "Installing $(cat tests/compat/client.in) into $dir."
log=$(mktemp)
if "$python" -m venv --clear "$dir" >"$log" 2>&1 && "$dir/bin/python" -m pip --disable-pip-version-check \
    --quiet install --no-compile --no-deps --only-binary :all: --require-hashes -r "$lock" >>"$log" 2>&1; then
    rm -f "$log"
    touch "$dir/.complete"
else
    echo "Could not install it; the end of $log:" >&2
    tail -n 20 "$log" >&2
    [ "${CI:-}" != true ] || exit 1
fi
