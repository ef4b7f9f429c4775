"""One view over PostgreSQL, MySQL, MongoDB, a REST service and CSV files, kept up to date.

A shop's customers are in PostgreSQL, its orders in MySQL, its reviews in MongoDB, prices come from
a REST service and suppliers from CSV files. The view has a row for each customer and product.

Run it, with the addresses of yours (docs/SOURCES.md says what each source needs):
python examples/five_sources.py --mysql 127.0.0.1:3306 --user reader --mongodb 127.0.0.1:27017 \\
    --rest http://127.0.0.1:8080 --folder /data/suppliers --url http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
from typing import Any

import tidemark

QUERY = """
SELECT c.name AS customer, o.product, s.name AS supplier,
       sum(o.quantity) AS pieces, sum(o.quantity * p.price) AS spent, max(r.stars) AS stars
FROM customers c
JOIN orders_db.orders o ON o.customer = c.id
JOIN prices.products p ON p.id = o.product
JOIN files.suppliers s ON s.id = p.supplier
LEFT JOIN reviews_db.reviews r ON r.customer = c.id AND r.product = o.product
GROUP BY c.name, o.product, s.name
"""


def sources(given: argparse.Namespace) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return type and options of each source by its name; columns of the tables are discovered."""
    host, _, port = given.mysql.rpartition(":")
    orders: dict[str, Any] = {
        "host": host,
        "port": int(port),
        "user": given.user,
        "tables": [f"{given.database}.orders"],
    }
    if given.password:
        orders["password"] = given.password
    reviews = {
        "servers": [given.mongodb],
        "database": given.database,
        "poll_interval_ms": 200,
        "relations": {
            "reviews": {
                "columns": [
                    {"name": "_id", "type": "text"},
                    {"name": "customer", "type": "integer"},
                    {"name": "product", "type": "integer"},
                    {"name": "stars", "type": "integer", "path": "$.rating.stars"},
                ]
            }
        },
    }
    prices = {
        "url": given.rest,
        "poll_interval_ms": 200,
        "relations": {
            "products": {
                "path": "/products",
                "rows": "$.items",
                "key": ["id"],
                "columns": [
                    {"name": "id", "type": "integer"},
                    {"name": "supplier", "type": "integer"},
                    {"name": "price", "type": "numeric(10,2)"},
                ],
            }
        },
    }
    suppliers = {
        "relations": {
            "suppliers": {
                "path": f"{given.folder}/*.csv",
                "columns": [{"name": "id", "type": "integer"}, {"name": "name", "type": "text"}],
            }
        }
    }
    return {
        "orders_db": ("mysql", orders),
        "reviews_db": ("mongodb", reviews),
        "prices": ("http", prices),
        "files": ("files", suppliers),
    }


def main() -> None:
    """Declare the sources, create the view, and print its rows."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mysql", required=True, help="host:port")
    options.add_argument("--user", required=True, help="of MySQL")
    options.add_argument("--password", help="of MySQL, as a reference: ${env:SECRET_MYSQL}")
    options.add_argument("--database", default="shop", help="of MySQL and MongoDB")
    options.add_argument("--mongodb", required=True, help="host:port")
    options.add_argument("--rest", required=True, help="URL of the service that has /products")
    options.add_argument("--folder", required=True, help="of suppliers/*.csv")
    options.add_argument("--url", default=tidemark.DEFAULT_URL)
    given = options.parse_args()
    with tidemark.connect(given.url) as client:
        for name, (kind, declared) in sources(given).items():
            client.create_source(name, kind, client.discover_source(kind, declared))
        view = client.create("spent", QUERY)
        for row in view.rows(order=["customer", "product"]):
            print(*row, sep="\t")


if __name__ == "__main__":
    main()
