#!/bin/sh
# The whole test suite: test.sh PYTHON [PYTEST ARGUMENTS]. With arguments it is one pytest with these.
#
# Without, its parts run three at a time, the longest first: many tests wait for processes, sockets, databases,
# browsers and clocks, and beside others they cost little time. The last part is all that the others leave out.
# Tests that fail in this crowd run once more when it is over: one that fails again fails the suite, one that passes
# alone is named at the end.
set -eu
python=$1
shift
unset PYTHONDONTWRITEBYTECODE  # tests start hundreds of processes: our sources are compiled once and not by each
export OMP_NUM_THREADS=1       # threads of several trainings on few cores would wait for each other
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
xargs -P 3 -L 1 sh -c '
    part=$1/$2; name=$2; shift 2
    rc=0
    "$0" -m pytest -o cache_dir="$part.cache" "$@" >"$part.log" 2>&1 || rc=$?
    echo "== $name: exit code $rc"; cat "$part.log"
    if [ "$rc" != 0 ]; then echo "$rc $*" >"$part.failed"; fi' "$python" "$said" <<'PARTS'
server-a    tests/server --ignore-glob=tests/server/test_[r-z]*
diagnostics tests/diagnostics
dashboards  tests/dashboards
agent-a     tests/agent  --ignore-glob=tests/agent/test_[a-o]*
others      tests --ignore=tests/server --ignore=tests/agent --ignore=tests/dashboards --ignore=tests/diagnostics
server-r    tests/server --ignore-glob=tests/server/test_[a-q]*
agent-p     tests/agent  --ignore-glob=tests/agent/test_[p-z]* --ignore-glob=tests/agent/[!t]*
PARTS
status=0
for failed in "$said"/*.failed; do
    [ -e "$failed" ] || continue
    part=${failed%.failed}
    read -r rc arguments <"$failed"
    echo "== ${part##*/} ended with $rc: what failed, once more by itself"
    set -f  # the patterns are for pytest
    # shellcheck disable=SC2086
    if [ "$rc" != 1 ] || ! "$python" -m pytest -v --last-failed --last-failed-no-failures=none \
        -o cache_dir="$part.cache" $arguments >"$part.again" 2>&1; then
        status=1
    fi
    set +f
    if [ -e "$part.again" ]; then
        cat "$part.again"
        grep -h ' PASSED' "$part.again" | sed 's/ PASSED.*//' >>"$said/unsteady" || true
    fi
done
if [ -s "$said/unsteady" ]; then
    echo "== failed beside other tests and passed alone, each worth a look:"
    sed 's/^/   /' "$said/unsteady"
fi
exit $status
