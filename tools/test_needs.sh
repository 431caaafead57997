#!/bin/sh
# test_needs.sh [PACKAGE...] - as root on Debian, install the packages that tests use and this
# machine lacks; elsewhere do nothing: a test without its service skips and says how to get it.
set -eu
missing=
[ -n "$(ls /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] || missing="$missing postgresql"
command -v dockerd >/dev/null || [ -x /usr/sbin/dockerd ] || missing="$missing docker.io iptables"
command -v docker-registry >/dev/null || missing="$missing docker-registry"
[ -x /usr/sbin/sshd ] || missing="$missing openssh-server"
command -v ssh >/dev/null || missing="$missing openssh-client"
busybox --list >/dev/null 2>&1 || missing="$missing busybox-static"
for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || [ ! -f /etc/debian_version ]; then
    echo "Not installed here, so some tests will skip:$missing" >&2
    exit 0
fi
echo "Installing with apt-get:$missing"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
install() {
    apt-get install -y -q --no-install-recommends $missing >>"$log" 2>&1 </dev/null
}
if install || { apt-get update -q >>"$log" 2>&1 </dev/null && install; }; then
    rm -f "$log"
else
    echo "Could not install$missing; the end of $log:" >&2
    tail -n 20 "$log" >&2
    [ "${CI:-}" != true ] || exit 1
fi
