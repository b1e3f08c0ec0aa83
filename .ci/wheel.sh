#!/bin/sh
# The built wheel in a clean environment, away from the checkout: wheel.sh PYTHON BUILD_PYTHON
set -eu
rm -rf dist .venv-wheel
"$2" -m build --wheel --no-isolation --outdir dist . >/dev/null
sh .ci/python.sh "$1" .venv-wheel
.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check "$(ls dist/*.whl)[server]"
here=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp tests/repo/wheel_smoke.py "$work/"
cd "$work"
"$here/.venv-wheel/bin/python" wheel_smoke.py
