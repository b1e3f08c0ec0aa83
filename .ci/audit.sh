#!/bin/sh
# Known vulnerabilities in the packages that floatscope is installed with. It asks a public database of advisories, so
# it needs the network; that it could not ask is never reported as "nothing found".
# Exit: 0 nothing known, 1 vulnerabilities (listed), 3 could not look.
# Arguments: the python that has the packages, the pip-audit to run.
set -eu
packages=$("$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
report=$(mktemp)
trap 'rm -f "$report" "$report.log"' EXIT
"$2" --path "$packages" --skip-editable --progress-spinner off --format json --output "$report" 2>"$report.log" || true
"$1" - "$report" "$report.log" <<'END'
import json, sys

try:
    with open(sys.argv[1]) as file:
        found = json.load(file)["dependencies"]
except (ValueError, KeyError, TypeError):
    with open(sys.argv[2], errors="replace") as file:
        why = [line.strip() for line in file if line.strip()][-1:] or ["no report was written"]
    print(f"COULD NOT LOOK: the advisories were not reached, so nothing is known: {why[0][:300]}", file=sys.stderr)
    sys.exit(3)
bad = [package for package in found if package.get("vulns")]
for package in bad:
    for advisory in package["vulns"]:
        fixed = ", ".join(advisory.get("fix_versions", [])) or "no version yet"
        print(f"{package['name']} {package['version']}: {advisory['id']}, mended in {fixed}")
skipped = [package["name"] for package in found if "skip_reason" in package]
if skipped:
    print(f"not looked at: {', '.join(skipped)}", file=sys.stderr)
print(f"{len(found) - len(skipped)} packages looked at, {len(bad)} with known vulnerabilities")
sys.exit(1 if bad else 0)
END
