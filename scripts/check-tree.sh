#!/usr/bin/env bash
# What must not be in the tree, whoever put it there. Looks at what git knows or would add.
set -euo pipefail
cd "$(dirname "$0")/.."

# Source, not artefacts: nothing here should come near this size (in KiB).
largest=512
failed=0

fail() {
    printf 'error: %s\n' "$1" >&2
    failed=1
}

# Lists where a pattern (extended, as git grep takes it) occurs in text files, this file excepted.
forbid() {
    local what=$1 pattern=$2 found
    found=$(git grep --untracked -nIE -e "$pattern" -- . ':!scripts/check-tree.sh' ':!Cargo.lock' || true)
    [ -z "$found" ] || fail "$what:"$'\n'"$found"
}

forbid 'merge conflict markers' '^(<<<<<<<|>>>>>>>|\|\|\|\|\|\|\|)( |$)'
forbid 'private keys' '-----BEGIN ([A-Z]+ )*PRIVATE KEY-----'
forbid 'NATS seeds' '\bS[UAONCX][A-Z2-7]{56}\b'
forbid 'paths of one particular machine' '(^|[^A-Za-z0-9_.~-])/(root|work|home/[a-z]|Users/[A-Za-z])[A-Za-z0-9_.-]*/'
forbid 'white space at the end of a line' '[[:blank:]]$'

while IFS= read -r -d '' file; do
    [ -f "$file" ] || continue # deleted, or a link to nothing
    size=$(($(wc -c <"$file") / 1024))
    [ "$size" -le "$largest" ] || fail "$file is $size KiB; the limit is $largest"
    case $file in
    target/* | *.orig | *.rej | *.swp | *.log | .env | *.env | *.pem | *.creds | *.nk)
        fail "$file does not belong into the tree"
        ;;
    esac
done < <(git ls-files -z --cached --others --exclude-standard)

exit "$failed"
