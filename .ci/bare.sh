#!/bin/sh
# The agent as a trainer gets it: no extra, no torch. bare.sh PYTHON
set -eu
sh .ci/python.sh "$1" .venv-bare
.venv-bare/bin/python -m pip install --quiet --disable-pip-version-check . "pytest>=8.4" "pytest-timeout>=2.3" "hypothesis>=6.100"
.venv-bare/bin/python -m pytest tests/protocol tests/bare
