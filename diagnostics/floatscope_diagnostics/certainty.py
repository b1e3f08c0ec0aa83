"""Whether the best explanation of an incident is sure enough to be named."""

from __future__ import annotations

from dataclasses import replace

from floatscope_diagnostics.rule import Alternative, Finding, Remedy

CONFIDENT = 0.6  # below it the answer is undetermined, with the two best hypotheses and the test between them


def certain_or_undetermined(f: Finding) -> Finding:
    """A winner below CONFIDENT is reported as undetermined, with itself and its best rival as the
    hypotheses."""
    if f.confidence >= CONFIDENT or f.cause == "undetermined" or f.severity == "info":
        return f
    own = Alternative(f.cause, f.confidence, "not proven yet: " + f.decisive_test)
    rivals = sorted(f.alternatives, key=lambda a: -a.confidence)[:1]
    return replace(
        f,
        cause="undetermined",
        kind=None,
        alternatives=(own, *rivals),
        summary=f"{f.summary} The cause is not certain: "
        + " or ".join(a.cause for a in (own, *rivals))
        + ".",
        remedy=Remedy(
            "Run the deciding test first. If it points to " + f.cause + ": " + f.remedy.text,
            f.remedy.settings,
        ),
    )
