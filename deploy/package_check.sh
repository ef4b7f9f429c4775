#!/usr/bin/env bash
# Builds the wheels (ours, and the native kernels'), installs them with all it needs into an empty environment, and serves from there
# on a private PostgreSQL until the API and its pages answer and a view is live; then stops it. Takes
# some minutes: the native kernels are built again.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
folder=$(mktemp -d)
started=()
trap '[ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT

mkdir "$folder/source"
git ls-files -co --exclude-standard -z -- native storage dataflow connectors service tidemark.py pyproject.toml README.md LICENSE NOTICE |
    tar -c --null -T - | tar -x -C "$folder/source"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" wheel -q --no-deps --wheel-dir "$folder" "$folder/source/native" "$folder/source"
"$folder/venv/bin/pip" install -q "$folder"/*.whl
"$folder/venv/bin/pip" check
cd "$folder"
venv/bin/tidemark --version

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
TIDEMARK_SOURCE=$(cat dsn) TIDEMARK_PORT=$port TIDEMARK_STATE=$folder/state venv/bin/tidemark serve &
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
kill "$service"
wait "$service" && echo "stopped"
