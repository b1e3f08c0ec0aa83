#!/bin/sh
# The whole test suite: test.sh PYTHON [PYTEST ARGUMENTS]. With arguments it is one pytest with these.
#
# Without, its parts run three at a time, the longest first: many tests wait for processes, sockets, databases,
# browsers and clocks, and beside others they cost little time. The last part is all that the others leave out.
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
rc=0
xargs -P 3 -L 1 sh -c '
    said=$1/$2; name=$2; shift 2
    rc=0
    "$0" -m pytest -p no:cacheprovider "$@" >"$said" 2>&1 || rc=$?
    echo "== $name: exit code $rc"; cat "$said"
    exit $rc' "$python" "$said" <<'PARTS' || rc=$?
server-a    tests/server --ignore-glob=tests/server/test_[r-z]*
diagnostics tests/diagnostics
dashboards  tests/dashboards
agent-a     tests/agent  --ignore-glob=tests/agent/test_[a-o]*
others      tests --ignore=tests/server --ignore=tests/agent --ignore=tests/dashboards --ignore=tests/diagnostics
server-r    tests/server --ignore-glob=tests/server/test_[a-q]*
agent-p     tests/agent  --ignore-glob=tests/agent/test_[p-z]* --ignore-glob=tests/agent/[!t]*
PARTS
exit $rc
