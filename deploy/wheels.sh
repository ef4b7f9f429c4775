#!/usr/bin/env bash
# Builds the wheels of a release: deploy/wheels.sh OUT [ARCHITECTURE ...]. The kernels are built for
# each architecture (x86_64 and aarch64, unless they are named) and run wherever glibc is 2.28 or
# newer; then come the service and the client. The tools, maturin and zig's linker, are installed
# below build/, where what is compiled stays too: only what has changed is compiled again.
set -euo pipefail
out=$(realpath -m "${1:?the folder of the wheels}")
shift
[ $# -gt 0 ] || set -- x86_64 aarch64
cd "$(dirname "$0")/.."

say() { printf 'wheels: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

PATH="$PATH:$HOME/.cargo/bin"
command -v cargo >/dev/null || fail "Rust 1.85 or newer is needed: https://rustup.rs"
# Debian's Rust has the standard library of its own architecture alone.
for architecture in "$@"; do
    target=$architecture-unknown-linux-gnu
    [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || continue
    command -v rustup >/dev/null || fail "Rust for $target is needed: install it by rustup"
    rustup --quiet target add "$target"
done

tools=$PWD/build/wheel-tools
mkdir -p build "$out"
if ! [ -x "$tools/bin/maturin" ]; then
    "${PYTHON:-python3}" -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin>=1.9,<2' 'ziglang>=0.13' \
        'setuptools>=77' wheel
fi
for architecture in "$@"; do
    say "the kernels for $architecture"
    PATH="$tools/bin:$PATH" CARGO_TARGET_DIR=$PWD/build/native/$architecture "$tools/bin/maturin" build \
        --quiet --release --locked --zig --target "$architecture-unknown-linux-gnu" \
        --compatibility manylinux_2_28 --manifest-path native/Cargo.toml --out "$out"
done

# From a copy of what is in the repository: setuptools leaves files in the folder that it builds.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git ls-files -co --exclude-standard -z -- storage dataflow connectors service tidemark.py \
    pyproject.toml README.md LICENSE NOTICE | tar -c --null -T - | tar -x -C "$folder"
say "the service and the client"
"$tools/bin/pip" wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --wheel-dir "$out" "$folder"
PYTHON=$tools/bin/python deploy/client/build.sh "$out"
ls "$out" >&2
