#!/usr/bin/env bash
# The entry point of the image's target "executor": Spark starts its pods with the argument executor
# and says in the environment where the driver is (spark.kubernetes.container.image names the image).
set -euo pipefail

if [ "${1:-}" != executor ]; then
    echo "spark_executor.sh: this image only runs executors of Spark, not: $*" >&2
    exit 64
fi
home=${SPARK_HOME:-$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')}
export SPARK_HOME=$home PYSPARK_PYTHON=${PYSPARK_PYTHON:-$(command -v python)}

# Java's options come as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1 and so on.
options=()
number=0
while name=SPARK_JAVA_OPT_$number && [ -n "${!name+set}" ]; do
    options+=("${!name}")
    number=$((number + 1))
done

# Spark puts the files of an application where its executor starts.
cd "$(mktemp -d)"
exec java "${options[@]}" \
    "-Xms${SPARK_EXECUTOR_MEMORY}" "-Xmx${SPARK_EXECUTOR_MEMORY}" \
    -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$home/jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
