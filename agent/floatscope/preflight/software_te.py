"""Whether Transformer Engine's pieces fit each other, torch and this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from floatscope.preflight.check import Check
from floatscope.preflight.facts import Facts, Wanted
from floatscope.preflight.software_checks import rules_library
from floatscope.preflight.versions import parse_version, text_of, version_of

META = "transformer-engine"
BINDING = "transformer-engine-torch"
CORES = ("transformer-engine-cu12", "transformer-engine-cu13")
PIECES = (META, BINDING, *CORES)

_SOURCE = "Transformer Engine 2.20.2, common/__init__.py:199-275"
_REBUILD = (
    "rebuild it against this torch: pip install --no-build-isolation --no-cache-dir --force-reinstall"
    " --no-deps transformer-engine[pytorch]"
)


def te_checks(facts: Facts, wanted: Wanted) -> list[Check]:
    """Pieces, CUDA and import of Transformer Engine; none where it is not installed.

    Where the recipe does not run through it, or none was chosen, a broken one is only a warning.
    """
    pieces = {name: facts.versions[name] for name in PIECES if name in facts.versions}
    if not pieces:  # software.transformer_engine says that it is missing
        return []
    found = [_pieces(facts, pieces), _cuda(facts, pieces), _import(facts), *_availability(facts)]
    if rules_library(wanted) == "transformer_engine":
        return found
    return [replace(one, status="warn") if one.status == "fail" else one for one in found]


def _imports(facts: Facts) -> bool:
    tried = facts.libraries.get("te_import")
    return isinstance(tried, Mapping) and tried.get("state") == "ok"


def _pieces(facts: Facts, pieces: Mapping[str, str]) -> Check:
    read = ", ".join(f"{name} {version}" for name, version in pieces.items())
    why = "its pieces must be there together and of one version: the package asserts that at import"
    name = "software.te_pieces"
    if len({_release(version) for version in pieces.values()}) > 1:
        newest = max(pieces.values(), key=parse_version)
        do = f"pip install --no-build-isolation transformer-engine[pytorch]=={newest}"
        return Check(name, "software", "fail", f"{read}: they differ", why, do, _SOURCE)
    cores = [core for core in CORES if core in pieces]
    if len(cores) > 1:
        do = f"uninstall the one that is not for torch's CUDA: pip uninstall {cores[0]} or {cores[1]}"
        return Check(name, "software", "warn", f"{read}: two cores", why, do, _SOURCE)
    if META in pieces and not cores and BINDING not in pieces:
        # A build from source is one distribution of that name; only the import tells it from the empty one.
        if _imports(facts):
            return Check(name, "software", "pass", f"{read}, built from source", why, "", _SOURCE)
        note = (
            f"{read} alone: built from source, or the meta package without its core, which raises at import"
        )
        do = "if the import fails: pip install --no-build-isolation transformer-engine[pytorch]"
        return Check(name, "software", "unknown", note, why, do, _SOURCE)
    if not cores or BINDING not in pieces:
        missing = BINDING if cores else "transformer-engine-cu12 or transformer-engine-cu13"
        do = "pip install --no-build-isolation transformer-engine[pytorch]"
        return Check(name, "software", "fail", f"{read}; no {missing}", why, do, _SOURCE)
    return Check(name, "software", "pass", read, why, "", _SOURCE)


def _cuda(facts: Facts, pieces: Mapping[str, str]) -> Check:
    name, why = "software.te_cuda", "its core is built for one major version of CUDA, which must be torch's"
    cores = [core for core in CORES if core in pieces]
    cuda = version_of(facts, "cuda")
    read = f"{', '.join(cores) or 'no core as a package of its own'}; CUDA of torch {_cuda_text(facts)}"
    source = "Transformer Engine 2.20.2, README"
    if not cores and _imports(facts):
        return Check(name, "software", "pass", f"{read}; it was imported", why, "", source)
    if not cores:
        return Check(name, "software", "unknown", read, why, "the import of it tells", source)
    if cuda is None:
        return Check(name, "software", "unknown", read, why, "find out torch.version.cuda", source)
    if cuda == ():
        do = "install torch built for CUDA"
        return Check(name, "software", "fail", read, why, do, source)
    if any(int(core[-2:]) == cuda[0] for core in cores):
        return Check(name, "software", "pass", read, why, "", source)
    do = f"pip install --no-build-isolation transformer-engine[pytorch,core_cu{cuda[0]}]"
    return Check(name, "software", "fail", read, why, do, source)


def _cuda_text(facts: Facts) -> str:
    text = text_of(facts, "cuda")
    return "not read" if text is None else (text or "none: it is a build without CUDA")


def _import(facts: Facts) -> Check:
    name = "software.te_import"
    why = "only the import shows whether its extension fits this torch; it was tried in a process of its own"
    tried = facts.libraries.get("te_import")
    if not isinstance(tried, Mapping):
        reason = f"the import was not tried: {facts.failed.get('te_import', 'no reason known')}"
        return Check(
            name, "software", "unknown", reason, why, "run floatscope preflight on this machine", _SOURCE
        )
    state, error = tried.get("state"), str(tried.get("error", ""))
    if state == "ok":
        return Check(name, "software", "pass", "import transformer_engine.pytorch works", why, "", _SOURCE)
    if state != "failed":
        read = f"import transformer_engine.pytorch: {error or state}"
        return Check(name, "software", "unknown", read, why, "import it by hand and look", _SOURCE)
    return Check(
        name, "software", "fail", f"import transformer_engine.pytorch: {error}", why, _cure(error), _SOURCE
    )


def _cure(error: str) -> str:
    if "undefined symbol" in error:
        return f"the extension was built against another torch; {_REBUILD}"
    if "Could not find shared object" in error or "empty" in error.lower():
        return "parts of it are missing: pip install --no-build-isolation transformer-engine[pytorch]"
    if "cudnn" in error.lower():
        return "update nvidia-cudnn: Transformer Engine 2.20 raises with cuDNN before 9.12.0"
    if re.search(r"lib\w+\.so", error):
        return "a shared library is not found: install the CUDA libraries it names, or set LD_LIBRARY_PATH"
    return "read the error; a new installation of the same version is the usual cure"


def _availability(facts: Facts) -> list[Check]:
    """What Transformer Engine says itself, where it could be asked: a yes is no proof, a no is one."""
    said = facts.libraries.get("te_available")
    if not isinstance(said, Mapping):
        return []
    told = {str(recipe): answer for recipe, answer in said.items() if isinstance(answer, list | tuple)}
    words = [f"{recipe} {'yes' if answer and answer[0] else _no(answer)}" for recipe, answer in told.items()]
    if not words:
        return []
    return [
        Check(
            "software.te_says",
            "software",
            "pass",
            "; ".join(words),
            "its own answer on this GPU; a yes only means that nothing forbids it, see recipe.gpu",
            "",
            "Transformer Engine 2.20.2, pytorch/quantization.py:139-180",
        )
    ]


def _no(answer: Any) -> str:
    return f"no ({answer[1]})" if len(answer) > 1 and answer[1] else "no"


def _release(version: str) -> tuple[int, ...]:
    return parse_version(version)
