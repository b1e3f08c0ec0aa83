#!/bin/sh
# The Transformer Engine probe against the real Python package, its compiled part stubbed: te.sh PYTHON TORCH TE_VERSION
set -eu
sh .ci/python.sh "$1" .venv-te
pip=".venv-te/bin/python -m pip install --quiet --disable-pip-version-check"
$pip "$2"
$pip --no-deps "transformer-engine-cu13==$3" "transformer-engine==$3" nvdlfw-inspect
$pip pydantic importlib-metadata packaging einops pyyaml onnxscript onnx
$pip -e . --group test
.venv-te/bin/python -m pytest tests/te_contract
