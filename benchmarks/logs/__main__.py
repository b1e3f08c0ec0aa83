"""``python -m benchmarks.logs``: writes the logs, runs every tool on them, prints costs and ratios."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.logs.measure import Cost, cost
from benchmarks.logs.tools import Tool, tools

FORMATS = ("csv", "jsonl", "megatron")
TARGET_CPU_S = {"csv": 1.5, "jsonl": 1.5, "megatron": 4.0}  # beyond interpreter start and imports
TARGET_MB = 300.0
TARGET_IMPORTS_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logs", description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    args = parser.parse_args()
    found, missing = tools()
    for why in missing:
        print(why)
    bare = {tool.name: cost(tool.bare) for tool in found}
    cost(found[0].bare)  # files are in the page cache from here on
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMATS:
            healthy, broken = (Path(folder) / f"{name}.{form}" for name in ("healthy", "nan"))
            _write(healthy, form, args.steps)
            _write(broken, form, args.steps, args.steps * 7 // 10)
            _table(form, healthy, [t for t in found if form in t.reads], bare)
            print(f"\n  NaN from step {args.steps * 7 // 10:,} on:")
            for tool in found:
                what = _found(tool, broken) if form in tool.reads else "does not read it"
                print(f"  {tool.name:<11} {what}")
            healthy.unlink()
            broken.unlink()


def _write(path: Path, form: str, *numbers: int) -> None:
    """In a process of its own: what this one holds would count as the memory of those it starts."""
    words = [sys.executable, "-m", "benchmarks.logs.make", str(path), form, *map(str, numbers)]
    subprocess.run(words, check=True)


def _table(form: str, path: Path, found: list[Tool], bare: dict[str, Cost]) -> None:
    print(f"\n{form}, {path.stat().st_size / 1e6:,.0f} MB\n")
    heads = ("CPU s", "imports", "beyond", "wall s", "RSS MB", "x floatscope")
    print(f"  {'':<11}" + "".join(f" {h:>{w}}" for h, w in zip(heads, (6, 8, 7, 7, 7, 13), strict=True)))
    own = 0.0
    for tool in found:
        done, imports = cost(tool.command(path)), bare[tool.name].cpu_s
        own = own or done.cpu_s
        beyond = max(done.cpu_s - imports, 0.0)
        print(
            f"  {tool.name:<11} {done.cpu_s:6.2f} {imports:8.2f} {beyond:7.2f} {done.wall_s:7.2f} "
            f"{done.rss_mb:7.0f} {done.cpu_s / own:13.2f}"
        )
        if tool.name == "floatscope":
            met = beyond <= TARGET_CPU_S[form] and done.rss_mb < TARGET_MB and imports < TARGET_IMPORTS_S
            aim = f"{TARGET_CPU_S[form]} s beyond imports, {TARGET_MB:.0f} MB, imports {TARGET_IMPORTS_S} s"
            print(f"  {'':<11} target {aim}: {'met' if met else 'NOT MET'}")


def _found(tool: Tool, path: Path) -> str:
    done = cost(tool.command(path))
    lines = [line.strip() for line in done.output.splitlines() if line.strip()]
    said = next((x for x in lines if any(w in x[:24] for w in tool.said)), "")
    return (said or (lines[-1] if lines else "nothing"))[:100] + f" ({done.cpu_s:.1f} CPU s)"


if __name__ == "__main__":
    main()
