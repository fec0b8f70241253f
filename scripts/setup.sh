#!/usr/bin/env bash
# Makes sure that the programs of PostgreSQL and nats-server are there, for tests and demonstrations that start
# their own. Installs Debian's packages where they are missing; on another system it says what to install.
#
# Programs are all that is wanted, no services: what this installs is not started, not even at the next boot, and
# PostgreSQL gets no cluster. What was there before is left as it is.
set -euo pipefail

# The same places, in the same order, as src/embedded/find.rs.
has_postgres() {
    local directory
    if [ -n "${POSTGRES_BIN_DIR:-}" ]; then
        [ -x "$POSTGRES_BIN_DIR/postgres" ] && [ -x "$POSTGRES_BIN_DIR/initdb" ]
        return
    fi
    local -a directories
    IFS=: read -r -a directories <<<"$PATH"
    for directory in "${directories[@]}" /usr/lib/postgresql/*/bin "$(pg_config --bindir 2>/dev/null || true)"; do
        [ -x "$directory/postgres" ] && [ -x "$directory/initdb" ] && return
    done
    return 1
}

has_nats_server() {
    if [ -n "${NATS_SERVER:-}" ]; then
        [ -x "$NATS_SERVER" ]
        return
    fi
    PATH="$PATH:/usr/sbin:/usr/local/bin:/usr/local/sbin" type -P nats-server >/dev/null
}

has_compiler() {
    type -P cc >/dev/null
}

missing_packages() {
    has_postgres || echo postgresql
    has_nats_server || echo nats-server
    has_compiler || echo gcc libc6-dev
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

say_what_to_install() {
    cat >&2 <<'TEXT'
error: missing on this machine, and it is no Debian or Ubuntu on which I could install it.
Please install, then try again:
TEXT
    has_postgres || echo "  - PostgreSQL 14 or later with its server programs (postgres, initdb); if they are not on" \
        "PATH, name their directory in POSTGRES_BIN_DIR" >&2
    has_nats_server || echo "  - nats-server 2.9 or later (https://github.com/nats-io/nats-server); if it is not on" \
        "PATH, name it in NATS_SERVER" >&2
    has_compiler || echo "  - a C compiler, as cc" >&2
}

# Both files are the packages' own way of being told, and are gone again when this ends.
policy=/usr/sbin/policy-rc.d
cluster_directory=/etc/postgresql-common/createcluster.d
cluster_file=$cluster_directory/twinbox-setup.conf
placed=()

take_back() {
    [ ${#placed[@]} -eq 0 ] || as_root rm -f -- "${placed[@]}"
    # Unless the directory is the package's or holds something of somebody else's.
    as_root rmdir --ignore-fail-on-non-empty "$cluster_directory" 2>/dev/null || true
}

# Places a file from standard input, unless there is one already.
place() {
    local file=$1 mode=$2
    if [ -e "$file" ]; then
        return
    fi
    placed+=("$file")
    as_root mkdir -p "$(dirname "$file")"
    as_root tee "$file" >/dev/null
    as_root chmod "$mode" "$file"
}

install_packages() {
    trap take_back EXIT
    place "$policy" 755 <<'TEXT'
#!/bin/sh
# Placed by twinbox's setup for as long as it installs packages: no service is started by that.
exit 101
TEXT
    place "$cluster_file" 644 <<'TEXT'
# Placed by twinbox's setup for as long as it installs packages.
create_main_cluster = false
TEXT
    as_root env DEBIAN_FRONTEND=noninteractive sh -euc '
        apt-get update -q
        apt-get install -q -y --no-install-recommends "$@"
    ' sh "$@"
}

# A service that its package's first installation enabled would start with the next boot.
disable_new_nats_service() {
    type -P systemctl >/dev/null || return 0
    as_root systemctl --quiet disable nats-server.service || return 0
    echo "The service nats-server is not enabled: \`systemctl enable --now nats-server\` if you want it."
}

read -r -a missing <<<"$(missing_packages | tr '\n' ' ')"
if [ ${#missing[@]} -eq 0 ]; then
    exit 0
fi
for variable in POSTGRES_BIN_DIR NATS_SERVER; do
    if [ -n "${!variable:-}" ]; then
        echo "note: only $variable=${!variable} is looked at for that server; unset it to have another one found" >&2
    fi
done
if ! type -P apt-get >/dev/null; then
    say_what_to_install
    exit 1
fi
if [ "$(id -u)" -ne 0 ] && ! type -P sudo >/dev/null; then
    echo "error: missing: ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
    exit 1
fi

echo "Installing Debian packages: ${missing[*]}"
install_packages "${missing[@]}"
case " ${missing[*]} " in
*" nats-server "*) disable_new_nats_service ;;
esac
case " ${missing[*]} " in
*" postgresql "*) echo "PostgreSQL has no cluster: \`pg_createcluster VERSION main --start\` if you want one." ;;
esac

read -r -a missing <<<"$(missing_packages | tr '\n' ' ')"
if [ ${#missing[@]} -gt 0 ]; then
    echo "error: still missing after the installation: ${missing[*]}" >&2
    exit 1
fi
