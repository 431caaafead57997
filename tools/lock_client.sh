#!/bin/sh
# lock_client.sh UV - write the lock of the released client that tests/compat drives.
#
# The client itself is whole and unmodified. Left out is what it names as dependencies and never
# imports for jobs, files, secrets and workspaces; it makes half of the room and most of the time.
set -eu
unused="boto3 botocore cffi cryptography docker fastapi-cli fastapi-cloud-cli fastar grpcio hf-xet
    huggingface-hub hvac jmespath kubernetes ngcsdk nvidia-ml-py psutil pycparser pywin32 rignore
    s3transfer sentry-sdk sqlalchemy uvloop watchfiles"
omit=
for name in $unused; do omit="$omit --no-emit-package $name"; done
"$1" pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
    --no-annotate --quiet tests/compat/client.in $omit -o tests/compat/client.lock
