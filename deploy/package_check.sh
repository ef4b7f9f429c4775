#!/usr/bin/env bash
# Builds the wheels for this machine, installs them into empty environments, the service without any
# extra, and serves from there on a private PostgreSQL until the API and its pages answer and a view
# is live, which the client of its own wheel reads; then stops it. With a folder, such as that of
# `make wheels`, its wheels are installed: deploy/package_check.sh dist
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
folder=$(mktemp -d)
started=()
trap '[ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT

wheels=${1:+$(realpath "$1")}
if [ -z "$wheels" ]; then
    wheels=$folder/wheels
    deploy/wheels.sh "$wheels" "$(uname -m)"
fi
cd "$folder"
python3 -m venv venv
venv/bin/pip install -q --find-links "$wheels" "$wheels"/tidemarkdb-*.whl
venv/bin/pip check
venv/bin/tidemark --version
echo "installed: $(du -sm venv | cut -f1) MB"
python3 -m venv client
client/bin/pip install -q "$wheels"/tidemarkdb_client-*.whl

port=$((20000 + RANDOM % 20000))
PYTHONPATH=$root "$root/.venv/bin/python" - "$folder/dsn" <<'PYTHON' &
import sys
import time
from pathlib import Path

from connectors.postgres.embedded.server import EmbeddedPostgres, available_versions

with EmbeddedPostgres(max(available_versions()), {"wal_level": "logical"}) as server:
    Path(sys.argv[1]).write_text(server.dsn)
    while True:
        time.sleep(1)
PYTHON
started+=($!)
until [ -s dsn ]; do sleep 0.2; done
export TIDEMARK_SOURCE TIDEMARK_PORT=$port TIDEMARK_STATE=$folder/state
TIDEMARK_SOURCE=$(cat dsn)
venv/bin/tidemark doctor
venv/bin/tidemark serve &
service=$!
started+=("$service")
for path in /health/live /metrics /openapi.json / /docs; do
    until curl -sf -o answer "http://127.0.0.1:$port$path"; do
        kill -0 "$service" || { echo "the service has ended" >&2; exit 1; }
        sleep 1
    done
    [ -s answer ] && echo "answered: $path"
done
for asset in $(grep -o '/assets/[^"]*' answer); do
    curl -sf -o /dev/null "http://127.0.0.1:$port$asset" && echo "answered: $asset"
done
venv/bin/python - "$(cat dsn)" <<'PYTHON'
import sys

import psycopg2

with psycopg2.connect(sys.argv[1]) as session, session.cursor() as cursor:
    cursor.execute("CREATE TABLE orders (id int PRIMARY KEY, amount int)")
    cursor.execute("INSERT INTO orders VALUES (1, 10), (2, 20)")
PYTHON
venv/bin/tidemark create --url "http://127.0.0.1:$port" --wait-s 120 total "SELECT sum(amount) AS total FROM orders"
venv/bin/tidemark verify --url "http://127.0.0.1:$port" total
client/bin/python - "http://127.0.0.1:$port" <<'PYTHON'
import sys

import tidemark

assert [row.total for row in tidemark.connect(sys.argv[1]).view("total").rows()] == [30]
print("the client has read 30")
PYTHON
kill "$service"
wait "$service" && echo "stopped"
