#!/bin/sh
# The integrations against the real training libraries, on the CPU: integrations.sh PYTHON TORCH
#
# Some libraries pin an old torch or need a GPU toolchain for parts that are not used here; they are installed
# without their dependencies, and those that are needed are named.
set -eu
sh .ci/python.sh "$1" .venv-integrations
pip=".venv-integrations/bin/python -m pip install --quiet --disable-pip-version-check"
$pip "$2" transformers==5.24.0 trl==1.16.0 accelerate==1.15.0 lightning==2.6.6 torchao==0.18.0 deepspeed==0.19.8 datasets \
    "py-cpuinfo<10" requests "pillow<12" tyro==1.0.17 spmd_types==0.2.3 tensorboard==2.21.0 omegaconf==2.3.1 hydra-core==1.3.2 six
$pip -e '.[diagnostics]' --group test
$pip --no-deps mosaicml==0.32.1 "coolname<3" tabulate==0.9.0 torch_optimizer "importlib-metadata<9" zipp \
    torchtitan==0.3.0 torchdata==0.11.0 torch_checkpointing==0.1.1 megatron-core==0.16.1 megatron-bridge==0.3.1
# a process for each file, two at a time: these libraries change what others see (types, patches, module tables)
export INTEGRATIONS_MUST_RUN=1 OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
printf '%s\n' tests/integrations/test_*.py | xargs -P 2 -n 1 .venv-integrations/bin/python -m pytest -q -W ignore
# the fused kernels: in a folder of their own, since libraries behave differently where there is triton
$pip --no-deps --upgrade --target .venv-integrations/triton triton==3.9.0
KERNELS_MUST_RUN=1 TRITON_INTERPRET=1 PYTHONPATH=.venv-integrations/triton \
    .venv-integrations/bin/python -m pytest -W ignore tests/kernels
