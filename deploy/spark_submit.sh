#!/usr/bin/env bash
# Brings the views of a settings file up to date once, for schedulers that start programs by
# spark-submit: deploy/spark_submit.sh views.toml [options of spark-submit]
# The master is the one of the settings; python and spark-submit are those on the PATH.
set -euo pipefail

settings=${1:?usage: spark_submit.sh views.toml [options of spark-submit]}
shift
python=$(command -v python)
program=$("$python" -c 'import connectors.spark.run as program; print(program.__file__)')
iceberg=$("$python" -c 'from connectors.spark.batch.iceberg_sink import PACKAGE; print(PACKAGE)')
export PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=$python
exec spark-submit --deploy-mode client --packages "$iceberg" "$@" "$program" "$settings" --once
