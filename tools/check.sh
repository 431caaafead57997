#!/bin/sh
# check.sh BIN - every check that needs no test: what passes takes one line, the rest is shown.
set -u
bin=$1
failed=

run() {
    name=$1
    shift
    if out=$("$@" 2>&1); then
        echo "ok      $name"
    else
        echo "FAILED  $name"
        echo "$out"
        failed="$failed $name"
    fi
}

run format "$bin/ruff" format --check --quiet --output-format concise .
run lint "$bin/ruff" check --quiet --output-format concise .
run types "$bin/mypy"
run layers "$bin/lint-imports" --no-logo
run sizes "$bin/python" tools/check_sizes.py
run docs "$bin/python" tools/check_docs.py
[ -z "$failed" ] || { echo "Failed:$failed. Formatting and generated docs: make format"; exit 1; }
