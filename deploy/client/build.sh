#!/usr/bin/env bash
# Builds the wheel of the client alone into a folder: deploy/client/build.sh OUT
set -euo pipefail
out=$(realpath "${1:?the folder of the wheel}")
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# What `import tidemark` loads, and what the client imports where it is needed.
tar -c tidemark.py LICENSE dataflow/__init__.py dataflow/errors.py service/__init__.py \
    service/client/*.py service/runtime/__init__.py service/runtime/release.py |
    tar -x -C "$folder"
for name in dataflow service service/client; do
    [ ! -e "$name/py.typed" ] || cp "$name/py.typed" "$folder/$name/"
done
cp deploy/client/pyproject.toml deploy/client/README.md "$folder"
"${PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-deps \
    --wheel-dir "$out" "$folder"
