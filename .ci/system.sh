#!/bin/sh
# The programs the tests use for real: a browser and a PostgreSQL server. Installs them where we are root, else says how.
set -eu
missing=""
command -v chromium >/dev/null || command -v chromium-browser >/dev/null || missing="$missing chromium"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "the tests need$missing: install with: sudo apt-get install$missing" >&2
    exit 1
fi
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
