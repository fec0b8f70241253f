#!/usr/bin/env bash
# What the library must not drag in, and what deny.toml says about licences, bans and sources.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# Packages that belong to features, by what would be wrong with them in a library's own build.
not_in_the_library=(clap clap_derive comfy-table indicatif tempfile opentelemetry-otlp opentelemetry_sdk hyper axum)

# No trailing lines of features or targets: one package name a line.
tree=$("$cargo" tree --locked --edges normal,build --prefix none --format '{p}' | awk '{ print $1 }' | sort -u)
for package in "${not_in_the_library[@]}"; do
    if grep -qx -- "$package" <<<"$tree"; then
        echo "error: without features the library depends on $package; make it optional" >&2
        exit 1
    fi
done

if "$cargo" deny --version >/dev/null 2>&1; then
    "$cargo" deny --log-level warn check licenses bans sources
else
    echo "skipped: licences, bans and sources, since cargo-deny is not installed (cargo install --locked cargo-deny)"
fi
