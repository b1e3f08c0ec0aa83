#!/bin/sh
# The whole test suite in three processes side by side: test.sh PYTHON [PYTEST ARGUMENTS]
#
# Many tests of the agent and of the server wait for processes, sockets, databases and clocks; beside the others
# they cost little time. With arguments it is one pytest with these.
set -eu
python=$1
shift
if [ $# -gt 0 ]; then
    exec "$python" -m pytest "$@"
fi
said=$(mktemp -d)
"$python" -m pytest -p no:cacheprovider tests/agent >"$said/agent" 2>&1 &
agent=$!
"$python" -m pytest -p no:cacheprovider tests/server >"$said/server" 2>&1 &
server=$!
trap 'kill $agent $server 2>/dev/null || true; rm -rf "$said"' INT TERM
rc=0
"$python" -m pytest --ignore tests/agent --ignore tests/server || rc=$?
wait $agent || rc=$?
cat "$said/agent"
wait $server || rc=$?
cat "$said/server"
rm -rf "$said"
exit $rc
