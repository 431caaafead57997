#!/bin/sh
# matrix.sh "VERSION..." [PYTEST-ARGUMENT...] - run the tests on each of these Pythons that is found;
# fail if one fails.
set -eu
versions=$1 ran= failed=
shift
for version in $versions; do
    python=
    for candidate in "python$version" "$HOME"/.pyenv/versions/"$version".*/bin/python; do
        if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" 2>/dev/null; then
            python=$(command -v "$candidate")
            break
        fi
    done
    if [ -z "$python" ]; then
        echo "Python $version: not found here"
        continue
    fi
    echo "Python $version: $python"
    PYTHON=$python sh tools/venv.sh "build/venv-$version" editable dev.lock
    sh tools/test_client.sh "build/venv-$version/bin/python"
    ran="$ran $version"
    "build/venv-$version/bin/pytest" -q -p no:cacheprovider "$@" || failed="$failed $version"
done
echo "Ran on:${ran:- nothing}. Failed on:${failed:- none}."
[ -n "$ran" ] && [ -z "$failed" ]
