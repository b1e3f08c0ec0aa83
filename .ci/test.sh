#!/bin/sh
# The whole test suite in two processes: test.sh PYTHON [PYTEST ARGUMENTS]
#
# Half of the agent's tests wait for processes, sockets and clocks; beside the others they cost little time.
# With arguments it is one pytest with these.
set -eu
python=$1
shift
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi
agent=$(mktemp)
trap 'rm -f "$agent"' EXIT
"$python" -m pytest -p no:cacheprovider tests/agent >"$agent" 2>&1 &
agent_pid=$!
trap 'kill $agent_pid 2>/dev/null || true; rm -f "$agent"' INT TERM
rc=0
"$python" -m pytest --ignore tests/agent || rc=$?
wait $agent_pid || rc=$?
cat "$agent"
exit $rc
