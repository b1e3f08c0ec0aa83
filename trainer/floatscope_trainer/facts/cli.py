"""``floatscope facts``: what is true of FP8, measured here."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Sequence
from types import ModuleType

import torch

from floatscope.protocol.strict_json import dumps
from floatscope_trainer.facts.document import fact_document, list_document
from floatscope_trainer.facts.fact import contradictions
from floatscope_trainer.facts.report import fact_text, list_text
from floatscope_trainer.facts.table import MODULES, fact_of, find

EXIT_AGREES, EXIT_CONTRADICTED, EXIT_USAGE = 0, 1, 2
DESCRIPTION = (
    "Lists popular claims about FP8 training, or measures one of them on this machine: the claim, the "
    "figures, the verdict that follows from them, what to do instead. Nothing is looked up: every verdict "
    "is computed from the figures that were just measured. Needs no GPU; most take under 3 seconds."
)
EXAMPLES = """examples:
  floatscope facts                                # the claims
  floatscope facts scale-direction                # measure one
  floatscope facts loss-blindness --json
  floatscope facts --all --json > facts.json      # all of them, under a minute

exit codes: 0 listed, or this machine agrees with what docs/fp8/what-is-true.md says; 1 the figures of this
machine contradict the page, which is told; 2 wrong usage
"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``floatscope facts``."""
    p = argparse.ArgumentParser(
        prog="floatscope facts",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument(
        "name", nargs="?", metavar="NAME", help="the claim to measure; without one they are listed"
    )
    p.add_argument("--all", action="store_true", help="measure every claim")
    p.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Lists or measures. Returns 0, 1 where the figures contradict the page, 2 for wrong usage."""
    args = parser().parse_args(argv)
    if args.name is None and not args.all:
        print(dumps(list_document()) if args.json else list_text())
        return EXIT_AGREES
    if args.name is not None and args.all:
        return _refused("give a name or --all, not both")
    chosen: Sequence[ModuleType] = MODULES
    if args.name is not None:
        module = find(args.name)
        if module is None:
            return _refused(_unknown(args.name))
        chosen = (module,)
    return _measure(chosen, as_json=args.json, many=args.all)


def _measure(chosen: Sequence[ModuleType], *, as_json: bool, many: bool) -> int:
    """Measures on one thread, so that figures do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    documents, agrees = [], True
    try:
        for k, module in enumerate(chosen):
            begun = time.perf_counter()
            found = fact_of(module).measure()
            seconds = time.perf_counter() - begun
            agrees &= not contradictions(fact_of(module), found)
            if as_json:
                documents.append(fact_document(module, found, seconds))
            else:
                rule = "" if k == 0 else "\n" + "-" * 98 + "\n"
                print(rule + fact_text(module, found, seconds), flush=True)
    finally:
        torch.set_num_threads(threads)
    if as_json:
        whole = {"schema": "floatscope.facts/1", "agrees": agrees, "facts": documents}
        print(dumps(whole if many else documents[0]))
    return EXIT_AGREES if agrees else EXIT_CONTRADICTED


def _unknown(name: str) -> str:
    names = [fact_of(module).name for module in MODULES]
    shown = name if name.isprintable() and len(name) <= 80 else repr(name[:80])
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"there is no claim {shown}{hint} (the list: floatscope facts)"


def _refused(why: str) -> int:
    print(f"floatscope facts: {why}", file=sys.stderr)
    return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
