"""Tries to import Transformer Engine in a process of its own: an extension built against another torch
may end the process, and an import that hangs must not hang us.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

_MAX_BYTES = 200_000
_MARK = "floatscope-te "

_TRIAL = (
    r"""
import json, sys
out = {"state": "ok"}
try:
    import transformer_engine.pytorch as te
except BaseException as error:
    out = {"state": "failed", "error": (type(error).__name__ + ": " + " ".join(str(error).split()))[:600]}
else:
    said = {}
    for recipe, name in (("fp8", "is_fp8_available"), ("mxfp8", "is_mxfp8_available"),
                         ("fp8_block_scaling", "is_fp8_block_scaling_available"),
                         ("nvfp4", "is_nvfp4_available")):
        try:
            answer = getattr(te, name)(return_reason=True)
            said[recipe] = [bool(answer[0]), str(answer[1])[:300]]
        except BaseException as error:
            said[recipe] = [False, (type(error).__name__ + ": " + " ".join(str(error).split()))[:300]]
    out["available"] = said
    try:
        import transformer_engine_torch
        out["cublaslt"] = int(transformer_engine_torch.get_cublasLt_version())
    except BaseException:
        out["cublaslt"] = None
sys.stdout.write("\n"""
    + _MARK
    + r"""" + json.dumps(out) + "\n")
"""
)


class TeTrial:
    """An import of ``transformer_engine.pytorch`` under way.

    command: what runs the code given to it as its last argument, this Python by default.
    """

    def __init__(self, command: tuple[str, ...] = ()) -> None:
        self._said = b""
        self._error = ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own code in this Python
                [*(command or (sys.executable, "-c")), _TRIAL],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self._error = f"this Python could not be started: {error}"
            return
        self._reader = threading.Thread(target=self._read, name="floatscope-te", daemon=True)
        self._reader.start()

    def finish(self, limit_s: float) -> Mapping[str, Any]:
        """Its outcome: "state" is "ok", "failed" or "not tried", "error" says why.

        With "available" (recipe -> yes or no and the reason, in its own words) and "cublaslt"
        (packed version or None) where the import worked.
        """
        if self._process is None:
            return {"state": "not tried", "error": self._error}
        self._reader.join(max(limit_s, 0.0))
        if self._reader.is_alive():
            self._process.kill()
            self._process.wait()
            return {"state": "not tried", "error": f"the import did not end within {limit_s:.0f} s"}
        code = self._process.wait()
        return _outcome(self._said.decode("utf-8", "replace"), code)

    def _read(self) -> None:
        process = self._process
        if process is None or process.stdout is None:
            return
        with process.stdout as pipe:
            while part := pipe.read(65536):
                self._said = (self._said + part)[-_MAX_BYTES:]


def _outcome(said: str, code: int) -> Mapping[str, Any]:
    for line in reversed(said.splitlines()):
        if line.startswith(_MARK):
            try:
                found = json.loads(line.removeprefix(_MARK))
            except ValueError:
                break
            if isinstance(found, dict):
                return found
    last = " ".join((said.strip().splitlines() or [""])[-1].split())[:300]
    how = f"the process ended by signal {-code}" if code < 0 else f"the process ended with code {code}"
    return {"state": "failed", "error": f"{how}: {last}" if last else how}
