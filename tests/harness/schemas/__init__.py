"""The test schemas by name."""

from tests.harness.schemas.bank import BANK
from tests.harness.schemas.base import TableSpec, TestSchema
from tests.harness.schemas.events import EVENTS
from tests.harness.schemas.figures import FIGURES
from tests.harness.schemas.graph import GRAPH
from tests.harness.schemas.hr import HR
from tests.harness.schemas.lists import LISTS
from tests.harness.schemas.logs import LOGS
from tests.harness.schemas.market import MARKET
from tests.harness.schemas.nested import NESTED
from tests.harness.schemas.odd import ODD
from tests.harness.schemas.ranked import RANKED
from tests.harness.schemas.shop import SHOP
from tests.harness.schemas.tpch import TPCH
from tests.harness.schemas.wide import WIDE

SCHEMAS = {
    s.name: s
    for s in (
        *(SHOP, HR, BANK, EVENTS, WIDE, LOGS, LISTS, ODD, NESTED, TPCH, FIGURES, GRAPH, RANKED),
        MARKET,
    )
}

__all__ = ["SCHEMAS", "TableSpec", "TestSchema"]
