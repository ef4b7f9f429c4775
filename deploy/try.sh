#!/usr/bin/env bash
# Tries Tidemark on a database of your own: deploy/try.sh DSN. Prepares it (tidemark init), serves, and
# keeps the view `revenue` of the README up to date, over two tables in the schema tidemark_try, until
# Ctrl-C. The state lies in .tidemark/try (TIDEMARK_STATE), the port is 8000 (TIDEMARK_PORT). To
# remove it again, drop the view and then the schema.
set -euo pipefail
cd "$(dirname "$0")/.."
dsn=${1:-}
if [ -z "$dsn" ]; then
    echo "a database is needed: make try DSN='host=... dbname=... user=...'" >&2
    exit 2
fi
PATH="$PWD/.venv/bin:$PATH"
port=${TIDEMARK_PORT:-8000} state=${TIDEMARK_STATE:-.tidemark/try}
url=http://127.0.0.1:$port

python - "$dsn" <<'PYTHON'
import sys

import psycopg2

SHOP = """
CREATE SCHEMA IF NOT EXISTS tidemark_try;
SET search_path TO tidemark_try;
CREATE TABLE IF NOT EXISTS customers (id int PRIMARY KEY, region text NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY,
    customer_id int NOT NULL REFERENCES customers, amount numeric(10,2) NOT NULL);
INSERT INTO customers VALUES (1, 'north'), (2, 'south'), (3, 'south') ON CONFLICT DO NOTHING;
INSERT INTO orders VALUES (1, 1, 10), (2, 2, 20.50), (3, 3, 5) ON CONFLICT DO NOTHING;
"""
try:
    with psycopg2.connect(sys.argv[1]) as session, session.cursor() as cursor:
        cursor.execute(SHOP)
except psycopg2.Error as error:
    sys.exit(f"the tables cannot be made: {error}")
PYTHON
tidemark init "$dsn" --schemas tidemark_try || {
    echo "run what is to do, then make try again" >&2
    exit 1
}
tidemark serve --source "$dsn" --state "$state" --port "$port" &
service=$!
trap 'kill "$service" 2>/dev/null || true; wait "$service" || true' EXIT
until python -c "import urllib.request as u; u.urlopen('$url/health/live', timeout=4)" 2>/dev/null; do
    kill -0 "$service" 2>/dev/null || exit 1
    sleep 0.5
done
view=tidemark_try.revenue
if ! tidemark show --url "$url" "$view" >/dev/null 2>&1; then
    tidemark create --url "$url" --wait-s 120 "$view" "SELECT c.region, count(*) AS orders,
        sum(o.amount) AS revenue FROM tidemark_try.orders o
        JOIN tidemark_try.customers c ON c.id = o.customer_id GROUP BY c.region"
fi
tidemark rows --url "$url" "$view"
echo "live at $url: change tidemark_try.orders and read tidemark_try.revenue; Ctrl-C ends it"
wait "$service"
