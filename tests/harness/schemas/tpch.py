"""TPC-H: the published tables, orders that come and go with their lines, random small changes."""

from __future__ import annotations

from random import Random

from tests.harness import draw
from tests.harness.schemas.base import TableSpec, TestSchema
from tests.harness.tpch import BRANDS, CONTAINERS, MODES, NATIONS, ORDERS, SEGMENTS, Tpch

DDL = """
CREATE TABLE region (
    r_regionkey integer PRIMARY KEY, r_name char(25) NOT NULL, r_comment varchar(152)
);
CREATE TABLE nation (
    n_nationkey integer PRIMARY KEY, n_name char(25) NOT NULL, n_regionkey integer NOT NULL,
    n_comment varchar(152)
);
CREATE TABLE supplier (
    s_suppkey integer PRIMARY KEY, s_name char(25) NOT NULL, s_address varchar(40) NOT NULL,
    s_nationkey integer NOT NULL, s_phone char(15) NOT NULL, s_acctbal decimal(15,2) NOT NULL,
    s_comment varchar(101) NOT NULL
);
CREATE TABLE customer (
    c_custkey integer PRIMARY KEY, c_name varchar(25) NOT NULL, c_address varchar(40) NOT NULL,
    c_nationkey integer NOT NULL, c_phone char(15) NOT NULL, c_acctbal decimal(15,2) NOT NULL,
    c_mktsegment char(10) NOT NULL, c_comment varchar(117) NOT NULL
);
CREATE TABLE part (
    p_partkey integer PRIMARY KEY, p_name varchar(55) NOT NULL, p_mfgr char(25) NOT NULL,
    p_brand char(10) NOT NULL, p_type varchar(25) NOT NULL, p_size integer NOT NULL,
    p_container char(10) NOT NULL, p_retailprice decimal(15,2) NOT NULL, p_comment varchar(23)
);
CREATE TABLE partsupp (
    ps_partkey integer, ps_suppkey integer, ps_availqty integer NOT NULL,
    ps_supplycost decimal(15,2) NOT NULL, ps_comment varchar(199) NOT NULL,
    PRIMARY KEY (ps_partkey, ps_suppkey)
);
CREATE TABLE orders (
    o_orderkey bigint PRIMARY KEY, o_custkey integer NOT NULL, o_orderstatus char(1) NOT NULL,
    o_totalprice decimal(15,2) NOT NULL, o_orderdate date NOT NULL,
    o_orderpriority char(15) NOT NULL, o_clerk char(15) NOT NULL,
    o_shippriority integer NOT NULL, o_comment varchar(79) NOT NULL
);
CREATE TABLE lineitem (
    l_orderkey bigint, l_partkey integer NOT NULL, l_suppkey integer NOT NULL, l_linenumber integer,
    l_quantity decimal(15,2) NOT NULL, l_extendedprice decimal(15,2) NOT NULL,
    l_discount decimal(15,2) NOT NULL, l_tax decimal(15,2) NOT NULL, l_returnflag char(1) NOT NULL,
    l_linestatus char(1) NOT NULL, l_shipdate date NOT NULL, l_commitdate date NOT NULL,
    l_receiptdate date NOT NULL, l_shipinstruct char(25) NOT NULL, l_shipmode char(10) NOT NULL,
    l_comment varchar(44) NOT NULL, PRIMARY KEY (l_orderkey, l_linenumber)
);
"""

_GENERATOR = Tpch(seed=1)


def refresh_insert(rng: Random) -> list[str]:
    """Return the specification's first refresh function: an order comes with its lines."""
    order, lines = _GENERATOR.order(rng, rng.randrange(2 * ORDERS))
    key = order[1 : order.index(",")]
    return [
        f"DELETE FROM lineitem WHERE l_orderkey = {key}",
        f"DELETE FROM orders WHERE o_orderkey = {key}",
        f"INSERT INTO orders VALUES {order}",
        f"INSERT INTO lineitem VALUES {', '.join(lines)}",
    ]


def refresh_delete(rng: Random) -> list[str]:
    """Return the second refresh function: an order goes with its lines."""
    key = rng.randrange(2 * ORDERS)
    return [
        f"DELETE FROM lineitem WHERE l_orderkey = {key}",
        f"DELETE FROM orders WHERE o_orderkey = {key}",
    ]


TPCH = TestSchema(
    name="tpch",
    ddl=DDL,
    tables=(
        TableSpec("region", {"r_name": draw.choice("ASIA", "EUROPE")}, ("r_regionkey",), 0, 0.05),
        TableSpec("nation", {"n_regionkey": draw.integers(0, 4)}, ("n_nationkey",), 0, 0.2),
        TableSpec(
            "supplier",
            {
                "s_nationkey": draw.integers(0, len(NATIONS) - 1),
                "s_comment": draw.choice("fine", "some Customer has Complaints"),
            },
            ("s_suppkey",),
            0,
            0.5,
        ),
        TableSpec(
            "customer",
            {
                "c_nationkey": draw.integers(0, len(NATIONS) - 1),
                "c_mktsegment": draw.choice(*SEGMENTS),
                "c_acctbal": draw.decimals(-900, 9000, 2),
            },
            ("c_custkey",),
            0,
            0.7,
        ),
        TableSpec(
            "part",
            {
                "p_brand": draw.choice(*BRANDS),
                "p_container": draw.choice(*CONTAINERS),
                "p_size": draw.integers(1, 15),
            },
            ("p_partkey",),
            0,
            0.7,
        ),
        TableSpec("partsupp", {"ps_availqty": draw.integers(1, 999)}, ("ps_suppkey",), 0, 0.5),
        TableSpec(
            "orders",
            {"o_orderstatus": draw.choice("F", "O"), "o_orderdate": draw.dates(1993, 1996)},
            ("o_orderkey",),
            0,
            1,
        ),
        TableSpec(
            "lineitem",
            {
                "l_quantity": draw.integers(1, 50),
                "l_discount": draw.decimals(0, 0.1, 2),
                "l_receiptdate": draw.dates(1993, 1996),
                "l_shipmode": draw.choice(*MODES),
                "l_returnflag": draw.choice("R", "N"),
            },
            ("l_orderkey",),
            0,
            2,
        ),
    ),
    templates=(refresh_insert, refresh_insert, refresh_delete),
    inserts_rows=False,
    rows=_GENERATOR.rows(),
)
