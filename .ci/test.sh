#!/usr/bin/env bash
# The whole test: lint, every Go test under the race detector, allocation tests
# without it, a short run of every fuzz target, and real peers in the lab. Ends
# with a line that counts the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
log=$(mktemp)
trap 'rm -f "$log"' EXIT

step() { echo; echo "== $*"; date +%T; }

# said prints what the failed tests of a verbose run said, the last 40 lines of each, and
# what the compiler and the runtime had to say.
said() {
    awk '
        /^ *=== (RUN|CONT|NAME|PAUSE) / { name = $3; next }
        /^ *--- FAIL: / { bad[$3] = 1 }
        /^ *--- (PASS|SKIP|FAIL): / || /^(ok|FAIL|PASS)/ { name = ""; next }
        name != "" { line[name, ++n[name]] = $0 }
        /^(panic|fatal error):|^# |WARNING: DATA RACE/ { crash = 60 }
        crash > 0 { crash--; print }
        END {
            for (t in bad) {
                if (!n[t]) continue
                print "-- " t " said:"
                for (i = n[t] > 40 ? n[t] - 39 : 1; i <= n[t]; i++) print substr(line[t, i], 1, 400)
            }
        }' "$1"
}

# counted runs go test verbosely and shows what failed and why, what was skipped and the
# packages' lines.
failed=0
counted() {
    local out rc=0
    out=$(mktemp)
    "$@" > "$out" 2>&1 || rc=$?
    grep -E '^(ok|FAIL|panic:|\? )|^ *--- FAIL' "$out" || true
    if [ $rc -ne 0 ]; then
        echo "FAILED: $*"
        said "$out"
        failed=1
    fi
    grep -E '^ *--- SKIP' -A 2 "$out" || true
    cat "$out" >> "$log"
    rm -f "$out"
}

step lint
make lint
step "Go tests, race detector"
counted go test -race -count=1 -timeout 15m -v ./...
step "allocation tests, without the race detector"
counted go test -count=1 -timeout 10m -v -run 'Alloc|WithoutPoison' ./...
step "fuzz"
./.ci/fuzz.sh "${FUZZTIME:-3s}"
step "real peers"
make build
counted env RDMABRIDGE_LAB=1 go test -tags lab -count=1 -timeout 25m -v -run Lab ./cmd/rdmabridge

passed=$(grep -cE '^ *--- PASS' "$log" || true)
skipped=$(grep -cE '^ *--- SKIP' "$log" || true)
bad=$(grep -cE '^ *--- FAIL' "$log" || true)
[ "$failed" = 0 ] || [ "$bad" -gt 0 ] || bad=1
echo
echo "$passed passed, $bad failed, $skipped skipped"
[ "$bad" = 0 ]
