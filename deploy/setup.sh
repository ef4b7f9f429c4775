#!/usr/bin/env bash
# Makes .venv with what the project needs: deploy/setup.sh demo for the demo alone (Python's packages,
# Rust, Java, PostgreSQL's binaries, Kafka by Maven), deploy/setup.sh for everything, which is also
# MariaDB, ClickHouse, Chromium and the packages of all extras and tests. Done again only when
# pyproject.toml, native/, Python or the place of the repository has changed. As root on Debian it
# installs what is missing; as anyone else it says what to install. It starts no service, makes no
# database cluster and changes none that is there.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
case $what in
    demo) extras=arrow,demo,kafka,spark ;;
    all) extras=dev ;;
    *) echo "setup: demo or all, not $what" >&2; exit 2 ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

has_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_updated=
apt_install() {
    if [ -z "$apt_updated" ]; then
        DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || say "apt-get update failed, going on"
        apt_updated=1
    fi
    say "apt-get install $*"
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        -o Dpkg::Options::=--force-confold "$@" >&2
}

is_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local name
    for name in python3 python3.11 python3.12 python3.13 /usr/bin/python3; do
        if command -v "$name" >/dev/null && is_python "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

has_java() {
    local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
    [ "${version:-0}" -ge 17 ]
}

install_java() {
    has_java && return
    if has_apt; then
        apt_install openjdk-17-jre-headless || apt_install openjdk-21-jre-headless || true
    fi
    has_java || fail "Java 17 or newer is needed (Spark): apt-get install openjdk-17-jre-headless"
}

make_venv() {
    local python
    if ! python=$(find_python); then
        has_apt && apt_install python3 python3-venv
        python=$(find_python) || fail "Python 3.11 or newer is needed: apt-get install python3 python3-venv"
    fi
    if [ ! -x .venv/bin/python ] || ! is_python .venv/bin/python; then
        say "making .venv with $("$python" --version)"
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            has_apt && apt_install python3-venv
            "$python" -c 'import ensurepip, venv' 2>/dev/null ||
                fail "Python's venv is needed: apt-get install python3-venv"
        fi
        rm -rf .venv
        "$python" -m venv .venv
    fi
    uninstall_older
    install_native
    say "installing the packages of pyproject.toml (the first time takes a few minutes)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --use-pep517 --editable ".[$extras]" >&2
}

# The distributions under their older names, whose files are those of today's.
uninstall_older() {
    compgen -G '.venv/lib/python3*/site-packages/tidemark*-*.dist-info' |
        grep -qE '/tidemark(_native)?-[^/]*$' || return 0
    .venv/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes \
        tidemark tidemark-native >&2
    rm -rf .venv/native-built tidemark.egg-info
}

is_cargo() {
    local version
    version=$("$1" --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p') || return 1
    [ "${version:-0}" -ge 85 ]
}

find_cargo() {
    local name
    for name in cargo "$HOME/.cargo/bin/cargo" /usr/bin/cargo; do
        if command -v "$name" >/dev/null && is_cargo "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

native_digest() {
    {
        .venv/bin/python --version
        find native -path native/target -prune -o -type f -print0 | LC_ALL=C sort -z |
            xargs -0 sha256sum
    } | sha256sum
}

# The native kernels, built again only when they have changed.
install_native() {
    local cargo digest built=.venv/native-built
    digest=$(native_digest)
    if [ "$(cat "$built" 2>/dev/null)" = "$digest" ]; then return; fi
    if ! cargo=$(find_cargo); then
        has_apt && { apt_install cargo-web rustc-web || apt_install cargo || true; }
        cargo=$(find_cargo) ||
            fail "Rust 1.85 or newer is needed: apt-get install cargo-web rustc-web"
    fi
    say "building the native kernels with $("$cargo" --version)"
    PATH="$(dirname "$cargo"):$PATH" CARGO_TARGET_DIR=$PWD/.venv/native-target \
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
        --force-reinstall ./native >&2
    echo "$digest" >"$built"
}

has_postgres() {
    .venv/bin/python -c 'import sys
from connectors.postgres.embedded.server import available_versions
sys.exit(not available_versions())'
}

install_postgres() {
    has_postgres && return
    if has_apt; then
        # postgresql-common alone makes no cluster; with this file the server's package makes none.
        apt_install postgresql-common
        local conf=/etc/postgresql-common/createcluster.d/tidemark.conf
        mkdir -p "$(dirname "$conf")"
        echo 'create_main_cluster = false' >"$conf"
        trap 'rm -f "'"$conf"'"' EXIT
        apt_install postgresql
    fi
    has_postgres || fail "PostgreSQL's binaries are needed: apt-get install postgresql"
}

has_kafka() { [ "$(cat .venv/kafka/pom 2>/dev/null)" = "$(sha256sum <deploy/kafka/pom.xml)" ]; }

no_kafka() {
    say "no Kafka broker: $*; demo and tests go without. Later: rm $stamp* && deploy/setup.sh"
}

# The broker of demo and tests, for which the rest does not wait: where it cannot be had, it is said.
install_kafka() {
    has_kafka && return
    if ! command -v mvn >/dev/null && has_apt; then
        apt_install maven || true
    fi
    command -v mvn >/dev/null || { no_kafka "Maven is missing (apt-get install maven)"; return; }
    say "fetching the jars of Apache Kafka (about 45 MB)"
    rm -rf .venv/kafka-new
    if ! mvn --quiet --batch-mode --file deploy/kafka/pom.xml dependency:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$PWD/.venv/kafka-new" >&2; then
        no_kafka "Maven could not fetch its jars"
        return
    fi
    sha256sum <deploy/kafka/pom.xml >.venv/kafka-new/pom
    rm -rf .venv/kafka
    mv .venv/kafka-new .venv/kafka
    .venv/bin/python -m connectors.kafka.embedded >&2 || no_kafka "it does not start"
}

has_mariadb() {
    PATH="$PATH:/usr/sbin:/usr/local/sbin:/sbin" command -v mariadbd >/dev/null &&
        command -v mariadb-install-db >/dev/null
}

# For the tests of MySQL sources, which are skipped without it. This package has the programs alone:
# no service and no cluster.
install_mariadb() {
    has_mariadb && return
    if has_apt; then
        apt_install mariadb-server-core mariadb-client-core || true
    fi
    has_mariadb ||
        say "no MariaDB: the tests of MySQL sources are skipped (apt-get install mariadb-server-core mariadb-client-core)"
}

has_clickhouse() {
    PATH="$PATH:/usr/sbin:/usr/local/sbin:/sbin" command -v clickhouse-server >/dev/null
}

# For the tests of ClickHouse sources, which are skipped without it. Tests start servers of their
# own, so the package's service is not left running.
install_clickhouse() {
    has_clickhouse && return
    if has_apt; then
        apt_install clickhouse-server || true
        if command -v systemctl >/dev/null; then
            systemctl disable --now clickhouse-server >/dev/null 2>&1 || true
        fi
    fi
    has_clickhouse ||
        say "no ClickHouse: the tests of ClickHouse sources are skipped (apt-get install clickhouse-server)"
}

has_chromium() {
    local name
    for name in chromium chromium-browser google-chrome-stable google-chrome; do
        command -v "$name" >/dev/null && return
    done
    return 1
}

# For the tests of the console, which are skipped without it.
install_chromium() {
    has_chromium && return
    if has_apt; then
        apt_install chromium || true
    fi
    has_chromium || say "no Chromium: the tests of the console are skipped (apt-get install chromium)"
}

stamp=.venv/tidemark-setup
wanted() {
    pwd
    .venv/bin/python --version
    native_digest
    sha256sum pyproject.toml deploy/setup.sh deploy/kafka/pom.xml
}

# What is done for all is done for the demo.
is_done() {
    local wanted made
    [ -x .venv/bin/tidemark ] || return 1
    wanted=$(wanted 2>&1)
    for made in "$stamp" "$stamp-$what"; do
        [ "$wanted" != "$(cat "$made" 2>/dev/null)" ] || return 0
    done
    return 1
}

is_done && exit 0
# Two at once would install over each other. The Makefile is only a file to hold the lock on.
exec 9<Makefile
if command -v flock >/dev/null; then flock 9; fi
is_done && exit 0
install_java
make_venv
install_postgres
install_kafka
if [ "$what" = all ]; then
    install_mariadb
    install_clickhouse
    install_chromium
    wanted >"$stamp"
else
    wanted >"$stamp-$what"
fi
say "done: .venv/bin/tidemark"
