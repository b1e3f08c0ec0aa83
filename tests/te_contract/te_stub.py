"""Lets the real Python part of Transformer Engine be imported on a machine without a GPU.

The compiled module ``transformer_engine_torch`` is replaced by one with the enums that the package asserts at
import and with functions that raise when called. CPU builds of torch have no triton, so an empty one stands
in while the package is imported and is taken away again: torch looks for it later and must not find it.
"""

from __future__ import annotations

import enum
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
import warnings
from importlib import metadata
from typing import Any

FP8_DTYPES = {"kFloat8E4M3": 7, "kFloat8E5M2": 8}

_ENUMS = {
    "DType": (
        "kByte=0 kInt32=2 kFloat32=4 kFloat16=5 kBFloat16=6 kFloat8E4M3=7 kFloat8E5M2=8 kFloat4E2M1=10"
    ),
    "NVTE_Bias_Type": "NVTE_NO_BIAS=0 NVTE_PRE_SCALE_BIAS=1 NVTE_POST_SCALE_BIAS=2 NVTE_ALIBI=3",
    "NVTE_Mask_Type": (
        "NVTE_NO_MASK=0 NVTE_PADDING_MASK=1 NVTE_CAUSAL_MASK=2 NVTE_PADDING_CAUSAL_MASK=3 "
        "NVTE_CAUSAL_BOTTOM_RIGHT_MASK=4 NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK=5"
    ),
    "NVTE_Softmax_Type": "NVTE_VANILLA_SOFTMAX=0 NVTE_OFF_BY_ONE_SOFTMAX=1 NVTE_LEARNABLE_SOFTMAX=2",
    "NVTE_QKV_Format": (
        "NVTE_BSHD=1 NVTE_SBHD=0 NVTE_THD=2 NVTE_SBHD_2BSHD=4 NVTE_BSHD_2SBHD=3 NVTE_THD_2BSHD=5 "
        "NVTE_THD_2SBHD=6 NVTE_BHSD=7 NVTE_QKV_Format_NOT_SET=8"
    ),
    "NVTE_QKV_Layout": (
        "NVTE_SB3HD=0 NVTE_SBH3D=1 NVTE_SBHD_SB2HD=2 NVTE_SBHD_SBH2D=3 NVTE_SBHD_SBHD_SBHD=4 "
        "NVTE_BS3HD=5 NVTE_BSH3D=6 NVTE_BSHD_BS2HD=7 NVTE_BSHD_BSH2D=8 NVTE_BSHD_BSHD_BSHD=9 "
        "NVTE_T3HD=10 NVTE_TH3D=11 NVTE_THD_T2HD=12 NVTE_THD_TH2D=13 NVTE_THD_THD_THD=14 "
        "NVTE_SBHD_BSHD_BSHD=15 NVTE_BSHD_SBHD_SBHD=16 NVTE_THD_BSHD_BSHD=17 NVTE_THD_SBHD_SBHD=18 "
        "NVTE_Paged_KV_BSHD_BSHD_BSHD=19 NVTE_Paged_KV_BSHD_SBHD_SBHD=20 "
        "NVTE_Paged_KV_SBHD_BSHD_BSHD=21 NVTE_Paged_KV_SBHD_SBHD_SBHD=22 "
        "NVTE_Paged_KV_THD_BSHD_BSHD=23 NVTE_Paged_KV_THD_SBHD_SBHD=24 NVTE_BHSD_BHSD_BHSD=25 "
        "NVTE_QKV_Layout_NOT_SET=26"
    ),
    "NVTE_Fused_Attn_Backend": "NVTE_F16_arbitrary_seqlen=1 NVTE_FP8=2 NVTE_No_Backend=-1",
    "NVTEScalingMode": (
        "NVTE_DELAYED_TENSOR_SCALING=0 NVTE_MXFP8_1D_SCALING=1 NVTE_BLOCK_SCALING_1D=2 "
        "NVTE_BLOCK_SCALING_2D=3 NVTE_NVFP4_1D_SCALING=4 NVTE_INVALID_SCALING=100"
    ),
    "Float8BlockScaleTensorFormat": "GEMM_READY=0 COMPACT=1 INVALID=2",
    "CommOverlapType": "RS=0 AG=1",
    "CommOverlapAlgo": (
        "BULK_OVERLAP_AG=0 BULK_OVERLAP_RS=1 SPLIT_PIPELINED_AG_P2P=2 SPLIT_PIPELINED_RS=3 "
        "SPLIT_PIPELINED_RS_P2P=4 ATOMIC_GEMM_RS=5 ATOMIC_GEMM_AG_P2P=6 ATOMIC_GEMM_RS_P2P=7 "
        "EXTERNAL_BULK_OVERLAP_AG=8"
    ),
    "NVTERoutingMapFormat": "BYTEMAP=0 BITMAP_U8=1",
    "NVTEQBHistogramMode": "TWO_KERNEL=0 FUSED_ATOMIC=1",
    "FP8FwdTensors": (
        "GEMM1_INPUT=0 GEMM1_WEIGHT=1 GEMM1_OUTPUT=2 GEMM2_INPUT=3 GEMM2_WEIGHT=4 GEMM2_OUTPUT=5 "
        "GEMM3_INPUT=6 GEMM3_WEIGHT=7 GEMM3_OUTPUT=8"
    ),
    "FP8BwdTensors": "GRAD_OUTPUT1=0 GRAD_INPUT1=1 GRAD_OUTPUT2=2 GRAD_INPUT2=3 GRAD_OUTPUT3=4 GRAD_INPUT3=5",
}
"""Enums of the compiled module with their values (transformer_engine/pytorch/csrc)."""


def _enums(version: str) -> dict[str, str]:
    """The enums of a version of the package."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) >= (2, 15):
        return _ENUMS
    backend = "NVTE_Fused_Attn_Backend"
    return {**_ENUMS, backend: f"NVTE_F16_max512_seqlen=0 {_ENUMS[backend]}"}


class _Missing:
    """A function or class of the compiled module: it can be named, not called."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"transformer_engine_torch.{self.name} is not emulated")

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self.name}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Missing) and other.name == self.name

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __or__(self, other: object) -> _Missing:
        return self

    __ror__ = __or__


class _Extension(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = _Missing(name)
        setattr(self, name, found)
        return found


class _Anything:
    """Stands for whatever is used of triton while modules are defined."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self  # a decorator

    def __getattr__(self, name: str) -> _Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(f"{self.name}.{name}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    def __add__(self, other: object) -> _Anything:
        return self

    __radd__ = __or__ = __ror__ = __add__

    def __getitem__(self, item: object) -> _Anything:
        return self


class _EmptyTriton(types.ModuleType):
    __path__ = []  # noqa: RUF012 - what makes a module a package
    __version__ = "3.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name)


class _TritonFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == "triton" or name.startswith("triton."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _EmptyTriton(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


def import_transformer_engine() -> tuple[Any, Any]:
    """``transformer_engine.pytorch`` and the stand-in for its compiled module."""
    os.environ["NVTE_PROJECT_BUILDING"] = "1"  # loads no shared library
    os.environ["NVTE_TORCH_COMPILE"] = "0"
    os.environ["NVTE_UNFUSED_FP8_UPDATE"] = "1"  # the scale update in Python instead of the fused kernel
    extension: Any = _Extension("transformer_engine_torch")
    extension.__file__ = __file__
    for name, members in _enums(metadata.version("transformer_engine")).items():
        pairs = [member.split("=") for member in members.split()]
        setattr(extension, name, enum.IntEnum(name, [(key, int(value)) for key, value in pairs]))
    extension.get_cudnn_version = lambda: 92400
    extension.get_cublasLt_version = lambda: 130101
    extension.is_non_tn_fp8_gemm_supported = lambda *args: True
    extension.get_num_cublas_streams = lambda: 4
    sys.modules["transformer_engine_torch"] = extension
    importlib.import_module("torch._dynamo")  # torch decides here that there is no triton
    finder = _TritonFinder()
    sys.meta_path.insert(0, finder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            common: Any = importlib.import_module("transformer_engine.common")
            common.load_framework_extension = lambda framework: None
            package = importlib.import_module("transformer_engine.pytorch")
    finally:
        sys.meta_path.remove(finder)
        for name in [n for n in sys.modules if n == "triton" or n.startswith("triton.")]:
            del sys.modules[name]
    return package, extension
