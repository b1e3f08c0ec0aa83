"""Reading this machine: packages, torch, libraries, kernel log, and the import of Transformer Engine."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floatscope.preflight import gathering_te
from floatscope.preflight.facts import Facts
from floatscope.preflight.gathering import gather_facts
from floatscope.preflight.gathering_kernel_log import read_xids
from floatscope.preflight.gathering_libraries import (
    cublaslt_text,
    found_cublaslt,
    kernel_driver,
    loaded_cublaslt,
)
from floatscope.preflight.gathering_te import TeTrial
from floatscope.preflight.gathering_torch import read_torch
from floatscope.preflight.gathering_versions import read_libraries, read_versions, torch_build
from floatscope.preflight.versions import (
    cudnn_text,
    dotted,
    is_below,
    is_same,
    parse_version,
    text_of,
    version_of,
)


def test_this_machine() -> None:
    facts = gather_facts()
    assert facts.python == ".".join(str(part) for part in sys.version_info[:3])
    assert facts.versions["numpy"] == np.__version__
    assert facts.versions["torch"] == facts.torch["version"]
    assert facts.torch["flags"]["allow_bf16_reduced_precision_reduction"] in (True, False, [True, True])
    assert "te_import" not in facts.libraries  # not installed here: nothing is tried
    assert facts.environment["PATH"]


def test_reading_takes_no_time_of_its_own() -> None:
    """Apart from the import of torch, which this process has done: preflight promises 5 s in all."""
    gather_facts(light=True)
    began = time.process_time()
    gather_facts()
    assert time.process_time() - began < 0.5


def test_light_imports_no_torch_and_starts_no_process() -> None:
    code = (
        "import sys, subprocess\n"
        "def no(*a, **k): raise AssertionError('a process was started')\n"
        "subprocess.Popen.__init__ = no\n"
        "from floatscope.preflight.gathering import gather_facts\n"
        "facts = gather_facts(light=True)\n"
        "assert 'torch' not in sys.modules and 'pynvml' not in sys.modules\n"
        "assert facts.versions['torch'] and facts.torch['version'], facts\n"
        "assert 'cuda' in facts.torch and 'not loaded' in facts.failed['torch'], facts\n"
        "assert 'training process' in facts.nvml, facts\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_packages() -> None:
    installed = {"torch": "2.12.0", "torchao": "", "nvidia-cudnn-cu12": "9.14.0.64"}

    def version(name: str) -> str:
        if name == "accelerate":
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    failed: dict[str, str] = {}
    versions = read_versions(failed, installed=version)
    assert versions == {"torch": "2.12.0", "nvidia-cudnn-cu12": "9.14.0.64"}
    assert set(failed) == {"torchao", "accelerate"}
    assert "damaged" in failed["accelerate"]
    assert read_libraries(versions) == {"cudnn": "9.14.0.64"}


def test_torch_build_is_read_without_importing_it() -> None:
    found = torch_build()
    assert set(found) == {"version", "cuda", "hip"}
    assert str(found["version"]).startswith("2.")


TRIALS = {
    "ok": 'print(\'hello\'); print(\'\\nfloatscope-te {"state": "ok", "available": {}}\')',
    "dies": "import os; os.kill(os.getpid(), 11)",
    "exits": "print('undefined symbol: _ZN'); raise SystemExit(3)",
    "lies": "print('floatscope-te nonsense')",
    "shouts": "print('x' * 3_000_000); print('floatscope-te {\"state\": \"ok\"}')",
}


@pytest.mark.parametrize(
    ("script", "state", "told"),
    [
        ("ok", "ok", ""),
        ("dies", "failed", "signal 11"),
        ("exits", "failed", "undefined symbol"),
        ("lies", "failed", "code 0"),
        ("shouts", "ok", ""),
    ],
)
def test_import_in_a_process_of_its_own(script: str, state: str, told: str) -> None:
    outcome = TeTrial((sys.executable, "-c", TRIALS[script])).finish(30)
    assert outcome["state"] == state
    assert told in outcome.get("error", "")


def test_an_import_that_hangs_is_ended() -> None:
    began = time.monotonic()
    outcome = TeTrial((sys.executable, "-c", "import time; time.sleep(60)")).finish(0.3)
    assert time.monotonic() - began < 10
    assert outcome["state"] == "not tried"
    assert "did not end" in outcome["error"]


def test_a_python_that_cannot_be_started() -> None:
    assert TeTrial(("/nonexistent/python",)).finish(1)["state"] == "not tried"


def test_the_trial_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the trial, against packages that look like Transformer Engine's."""
    package = tmp_path / "transformer_engine" / "pytorch"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text(
        "def is_fp8_available(return_reason=False): return True, ''\n"
        "def is_nvfp4_available(return_reason=False): raise RuntimeError('no driver')\n"
    )
    (tmp_path / "transformer_engine_torch.py").write_text("def get_cublasLt_version(): return 120804\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = TeTrial().finish(30)
    assert outcome["state"] == "ok"
    assert outcome["cublaslt"] == 120804
    assert outcome["available"]["fp8"] == [True, ""]
    assert outcome["available"]["nvfp4"] == [False, "RuntimeError: no driver"]
    (package / "__init__.py").write_text("raise ImportError('x.so: undefined symbol: _ZN3c10')")
    failed = TeTrial().finish(30)
    assert failed["error"] == "ImportError: x.so: undefined symbol: _ZN3c10"


def test_an_installed_transformer_engine_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    from floatscope.preflight import gathering

    class Trial:
        def finish(self, limit_s: float) -> dict[str, Any]:
            return {"state": "ok", "available": {"fp8": [True, ""]}, "cublaslt": 120901}

    monkeypatch.setattr(gathering, "TeTrial", Trial)
    monkeypatch.setattr(gathering, "read_versions", lambda failed: {"transformer-engine": "2.20.2"})
    facts = gather_facts()
    assert facts.libraries["te_import"] == {"state": "ok", "error": ""}
    assert facts.libraries["cublaslt"] == "12.9.1"
    assert "te_import" in gather_facts(light=True).failed


LOG = """\
6,1,0,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06
4,2,1,-;NVRM: Xid (PCI:0000:3B:00): 79, pid=0, GPU has fallen off the bus.
4,3,2,-;NVRM: Xid (0000:03:00): 14, Channel 00000001
4,4,3,-;NVRM: Xid (PCI:0000:06:00 GPU-I:05): 94, pid=7, Contained: SM
4,5,4,-;something about Xid 48 that is no report
"""


def test_xids_of_the_kernel_log() -> None:
    assert read_xids(lambda: LOG) == [
        {"xid": 79, "pci": "0000:3b:00"},
        {"xid": 14, "pci": "0000:03:00"},
        {"xid": 94, "pci": "0000:06:00"},
    ]
    assert len(read_xids(lambda: LOG * 2000)) == 1000


def test_a_kernel_log_that_may_not_be_read() -> None:
    def refuse() -> str:
        raise PermissionError("Operation not permitted")

    with pytest.raises(PermissionError):
        read_xids(refuse)


def test_version_of_the_kernel_module(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert kernel_driver(file) == ""
    for line, version in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build", "570.124.06"),
        ("something else", ""),
    ):
        file.write_text(line)
        assert kernel_driver(file) == version


def test_cublaslt(tmp_path: Path) -> None:
    assert cublaslt_text(120804) == "12.8.4"
    assert cublaslt_text(130100) == "13.1.0"
    assert cublaslt_text(11901) == "11.9.1"
    assert found_cublaslt(["libfloatscope-has-no-such-library.so.1"]) == ""
    maps = tmp_path / "maps"
    assert loaded_cublaslt(maps) == ""
    maps.write_text("7f00-7f01 r-xp 0000 08:01 42   /usr/lib/libc.so.6\n")
    assert loaded_cublaslt(maps) == ""
    maps.write_text("7f00-7f01 r-xp 0000 08:01 42   /opt/cuda/lib64/libcublasLt.so.12.8.4.1\n")
    with pytest.raises(OSError, match="libcublasLt"):  # it is named, but not loaded here
        loaded_cublaslt(maps)


def fake_torch(**cuda: Any) -> Any:
    flags = SimpleNamespace(
        allow_bf16_reduced_precision_reduction=(True, True),
        allow_fp16_reduced_precision_reduction=True,
        allow_tf32=False,
    )
    cudnn = SimpleNamespace(version=lambda: 91200, allow_tf32=True, benchmark=False)
    properties = SimpleNamespace(name="NVIDIA B200", major=10, minor=0, total_memory=180 * 2**30)
    found: dict[str, Any] = {
        "is_initialized": lambda: False,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_properties": lambda index: properties,
        "nccl": SimpleNamespace(version=lambda: (2, 30, 4)),
    }
    return SimpleNamespace(
        __version__="2.12.0+cu129",
        version=SimpleNamespace(cuda="12.9", hip=None),
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=flags), cudnn=cudnn),
        get_num_threads=lambda: 8,
        get_float32_matmul_precision=lambda: "highest",
        are_deterministic_algorithms_enabled=lambda: False,
        cuda=SimpleNamespace(**(found | cuda)),
    )


def test_torch_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    answer = read_torch(may_import=True)
    assert answer.failed == {}
    assert answer.facts["cudnn"] == "9.12.0"
    assert answer.facts["nccl"] == "2.30.4"
    assert answer.facts["flags"]["allow_bf16_reduced_precision_reduction"] == [True, True]
    (gpu,) = answer.gpus
    assert (gpu.name, gpu.capability, gpu.arch) == ("NVIDIA B200", (10, 0), "sm_100")


def test_light_does_not_start_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> bool:
        raise AssertionError("CUDA was started")

    monkeypatch.setitem(sys.modules, "torch", fake_torch(is_available=refuse))
    assert read_torch(may_import=False).gpus == ()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(is_initialized=lambda: True))
    assert len(read_torch(may_import=False).gpus) == 1


def test_torch_for_rocm(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        name="AMD Instinct MI300X", major=9, minor=4, total_memory=1, gcnArchName="gfx942:sramecc+:xnack-"
    )
    torch = fake_torch(get_device_properties=lambda index: properties)
    torch.version = SimpleNamespace(cuda=None, hip="6.4.43482")
    monkeypatch.setitem(sys.modules, "torch", torch)
    (gpu,) = read_torch(may_import=True).gpus
    assert (gpu.capability, gpu.arch) == (None, "gfx942")


def test_torch_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("CUDA error 802")

    torch = fake_torch(is_available=fail)
    torch.backends.cudnn.version = fail
    torch.cuda.nccl = None
    monkeypatch.setitem(sys.modules, "torch", torch)
    answer = read_torch(may_import=True)
    assert set(answer.failed) == {"cudnn", "nccl", "torch.cuda"}
    assert answer.facts["version"] == "2.12.0+cu129"
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr("importlib.import_module", fail)
    assert "802" in read_torch(may_import=True).failed["torch"]


def test_versions() -> None:
    assert parse_version("2.13.0+cpu") == (2, 13, 0)
    assert parse_version("2.7.0.dev0+abc") == (2, 7, 0)
    assert parse_version("2.9.0a0+git1234") == (2, 9, 0)
    assert parse_version("1!2.0") == (2, 0)
    assert parse_version(12.1) == parse_version(None) == parse_version("unknown") == ()
    assert is_below((12, 9), (12, 10))
    assert not is_below((12, 8), (12, 8, 0))
    assert is_same((12, 8), (12, 8, 0))
    assert dotted((12, 8)) == "12.8"
    assert (cudnn_text(91200), cudnn_text(92301), cudnn_text(8907)) == ("9.12.0", "9.23.1", "8.9.7")


def test_absent_and_unread_are_two_things() -> None:
    assert text_of(Facts(), "torchao") == ""
    assert text_of(Facts(failed={"versions": "x"}), "torchao") is None
    assert version_of(Facts(), "torchao") == ()
    assert version_of(Facts(), "cuda") is None
    assert version_of(Facts(torch={"cuda": None}), "cuda") == ()
    assert version_of(Facts(torch={"cuda": "12.10"}), "cuda") == (12, 10)
    assert version_of(Facts(torch={"cuda": "odd"}), "cuda") is None
    assert text_of(Facts(libraries={"cudnn": "9.14.0.64"}), "cudnn") == "9.14.0.64"
    assert text_of(Facts(versions={"transformer-engine-torch": "2.20.2"}), "transformer-engine") == "2.20.2"


@given(st.text(max_size=30))
def test_any_text_has_a_version_or_none(text: str) -> None:
    assert all(number >= 0 for number in parse_version(text))


@given(st.text(max_size=200), st.integers(-300, 300))
def test_any_output_of_the_trial_has_an_outcome(text: str, code: int) -> None:
    assert gathering_te._outcome(text, code)["state"] == "failed"
