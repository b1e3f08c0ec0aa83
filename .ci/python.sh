#!/bin/sh
# Makes a virtual environment: python.sh PYTHON DIRECTORY. Installs Debian's python3-venv first where it is missing and we are root.
set -eu
python=$1
venv=$2
command -v "$python" >/dev/null || { echo "floatscope needs Python 3.10 or newer; '$python' was not found (PYTHON=... names another)" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "floatscope needs Python 3.10 or newer, '$python' is $("$python" -V 2>&1) (PYTHON=... names another)" >&2; exit 1; }
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    [ "$(id -u)" = 0 ] || { echo "Python's venv module is missing: install it with: sudo apt-get install $package" >&2; exit 1; }
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" || apt-get install -y -qq python3-venv
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# pip 25.1 brought --group, which reads the test and lint requirements from pyproject.toml
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
