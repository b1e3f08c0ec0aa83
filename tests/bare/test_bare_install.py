"""The agent without any extra:

imports nothing heavy, watches a loop, and its command says what an extra would bring.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from floatscope.cli import COMMANDS, main, missing_extra

HEAVY = (
    "torch",
    "pandas",
    "scipy",
    "fastapi",
    "sqlalchemy",
    "plotly",
    "pydantic",
    "transformer_engine",
    "pynvml",
    "rich",
)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_agent_loads_nothing_heavy() -> None:
    code = f"import sys, floatscope; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert run_python(code) == "[]"


def test_importing_the_agent_starts_no_thread_and_reads_no_setting() -> None:
    code = """
import os, threading
class Watched(dict):
    def __getitem__(self, key):
        assert not str(key).startswith("FLOATSCOPE"), key
        return super().__getitem__(key)
    def get(self, key, default=None):
        assert not str(key).startswith("FLOATSCOPE"), key
        return super().get(key, default)
os.environ = Watched(os.environ)
import floatscope
print(threading.active_count())
"""
    assert run_python(code) == "1"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_command_without_its_extra_says_which(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    packages = {"serve": "fastapi", "train": "torch", "replay": "torch", "demo": "torch"}
    needed = packages.get(name)  # the others need no package
    if needed is None or importlib.util.find_spec(needed) is not None:
        assert "pip install 'floatscope[x]'" in missing_extra(name, "x", "y")
        return
    assert main([name, "--help"]) == 2
    assert f"pip install 'floatscope[{COMMANDS[name].extra}]'" in capsys.readouterr().err


def test_usage_names_every_command_and_an_unknown_one_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if name not in shown] == []
    assert main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err
    assert main(["--version"]) == 0


def test_a_reader_that_leaves_is_no_traceback() -> None:
    code = """
import sys, types
from floatscope import cli
module = types.ModuleType("long_answer")
module.main = lambda argv: sum(print("x" * 1000) is None for _ in range(10_000))
sys.modules["long_answer"] = module
cli.COMMANDS["long"] = cli.Command("long_answer", "x", "")
sys.exit(cli.main(["long"]))
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_a_full_disk_is_said_without_a_traceback() -> None:
    code = (
        "import sys; from floatscope.cli import main; sys.exit(main(['preflight', '--no-smoke', '--json']))"
    )
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "nothing more can be written" in done.stderr


def test_a_loop_without_torch_is_watched_into_a_log(tmp_path: object) -> None:
    code = f"""
import floatscope, pathlib, json
monitor = floatscope.watch(None, run="bare", run_id="bare", mode="local", spool_dir={str(tmp_path)!r})
for step in range(20):
    monitor.step(step, loss=2.0 - step * 0.01, lr=1e-3)
monitor.finish()
(log,) = pathlib.Path({str(tmp_path)!r}).rglob("*.jsonl")
print(sum("step" in json.loads(line) for line in log.read_text().splitlines()))
"""
    assert run_python(code).splitlines()[-1] == "20"
