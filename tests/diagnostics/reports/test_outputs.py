"""Page, summary and JSON: where they go and which exit code comes with them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from pathlib import Path

import pytest

from floatscope_diagnostics.cli import main
from tests.diagnostics.reports.logs import HOSTILE, broken, healthy, write


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, str]:
    return {
        "healthy": write(tmp_path / "healthy.jsonl", healthy()),
        "broken": write(tmp_path / "broken.jsonl", broken()),
        "gone": str(tmp_path / "gone.jsonl"),
    }


CODES = {
    ("healthy",): dict.fromkeys(("watch", "warning", "critical", "never"), 0),
    ("broken",): {"watch": 1, "warning": 1, "critical": 1, "never": 0},
    ("healthy", "broken"): {"watch": 1, "warning": 1, "critical": 1, "never": 0},
    ("broken", "gone"): dict.fromkeys(("watch", "warning", "critical", "never"), 2),
    ("gone",): dict.fromkeys(("watch", "warning", "critical", "never"), 2),
}
WAYS = ((), ("--json",), ("--html", "-"), ("--markdown", "-"), ("--watch", "--watch-for", "0.1"))


@pytest.mark.parametrize(
    ("names", "fail_on", "way"),
    list(itertools.product(CODES, ("watch", "warning", "critical", "never"), WAYS)),
    ids=str,
)
def test_exit_codes(names: tuple[str, ...], fail_on: str, way: tuple[str, ...], logs: dict[str, str]) -> None:
    code = main([*(logs[name] for name in names), "--fail-on", fail_on, *way])
    assert code == CODES[names][fail_on]


def test_a_folder_that_does_not_exist_is_told_before_anything_is_read(
    logs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--html", "--markdown"):
        assert main([logs["healthy"], option, str(tmp_path / "no" / "report")]) == 2
        out = capsys.readouterr()
        assert out.out == ""
        assert f"{option}: the folder {tmp_path / 'no'} does not exist" in out.err
    assert main([logs["healthy"], "--html", str(tmp_path)]) == 2
    assert "is a folder; name a file in it" in capsys.readouterr().err


def test_two_documents_do_not_share_standard_output(
    logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([logs["healthy"], "--json", "--html", "-"]) == 2
    assert "both want standard output" in capsys.readouterr().err


def test_files_are_written_whole_and_leave_nothing_behind(logs: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / "report.html"
    target.write_text("before")
    target.chmod(0o640)
    assert main([logs["healthy"], "--html", str(target), "--markdown", str(folder / "s.md"), "--json"]) == 0
    assert sorted(os.listdir(folder)) == ["report.html", "s.md"]
    assert target.read_text().endswith("</html>\n")
    assert target.stat().st_mode & 0o777 == 0o640


def test_the_page_goes_beside_the_report(
    logs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    assert main([logs["broken"], "--html", str(target)]) == 1
    out = capsys.readouterr().out
    assert "▲ CRITICAL" in out
    assert out.splitlines()[-1].endswith(f"Page: {target}")


def test_source_says_how_the_file_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("Step,Train Loss\n" + "".join(f"{s},2.0\n" for s in range(40)) + "junk\n")
    main([str(path), "--json"])
    source = json.loads(capsys.readouterr().out)["source"]
    assert list(source) == [
        "path", "format", "runs", "steps", "first_step", "last_step", "judged_step", "segments", "scalars",
        "tensors", "mapping", "skipped_lines", "first_skipped", "notes",
    ]  # fmt: skip
    assert source["mapping"] == {"Step": "step", "Train Loss": "loss"}
    assert source["skipped_lines"] == 1
    assert source["first_skipped"].startswith("line 42 passed over")


def test_a_column_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("n,objective,loss\n" + "".join(f"{s},{2 - s / 100},7\n" for s in range(40)))
    assert main([str(path), "--json", "--map", "loss=objective", "--map", "step=n"]) == 0
    source = json.loads(capsys.readouterr().out)["source"]
    assert source["mapping"] == {"n": "step", "objective": "loss"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("loss", "expected OURS=COLUMN"),
        ("=x", "expected OURS=COLUMN"),
        ("speed=x", "is no name of ours; known are step, loss"),
    ],
)
def test_a_wrong_map_is_usage(
    given: str, words: str, logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([logs["healthy"], "--map", given]) == 2
    assert words in capsys.readouterr().err


def test_a_program_may_put_its_own_stream_in_place_of_standard_output(logs: dict[str, str]) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([logs["broken"]]) == 1
    assert "CRITICAL" in out.getvalue()


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--formats"]) == 0
    out = capsys.readouterr().out
    assert "megatron" in out
    assert "floatscope JSONL" in out


def test_the_summary_for_a_job_is_a_table_and_the_findings(
    logs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([logs["healthy"], logs["broken"], logs["gone"], "--markdown", "-"]) == 2
    text = capsys.readouterr().out
    assert text.startswith(
        "## Training logs\n\n2 runs: 1 critical, 1 healthy.\n\n| | run | steps | loss | verdict |"
    )
    assert "| ▲ critical | `" in text
    assert "since step 41, last clean step 40" in text
    assert "1. " in text
    assert "### 1 input could not be read" in text


def test_names_do_nothing_in_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        [
            write(tmp_path / "run.jsonl", broken(), {"name": "a|b `x` <img src=x> [l](http://x)"}),
            "--markdown",
            "-",
        ]
    )
    text = capsys.readouterr().out
    row = next(line for line in text.splitlines() if line.startswith("| ▲"))
    assert "`a\\|b 'x' <img src=x> [l](http://x)`" in row
    assert HOSTILE not in text
