"""`python -m connectors.spark.run views.toml --once`: bring views up to date, and exit.

For schedulers such as Airflow; see docs/SCALE.md and `connectors.spark.batch`.
"""

import sys

from connectors.spark.batch.program import main

if __name__ == "__main__":
    sys.exit(main())
