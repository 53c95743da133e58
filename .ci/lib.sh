# shellcheck shell=bash
# lib.sh is what test.sh and ci.sh share. Each sources it in the root of the tree, and says in $out where the logs go.
#
# Every line begins with the time and the name of its step. Everything that a step printed is
# in $out/STEP.log.
rm -rf "$out"
mkdir -p "$out"
trap 'trap - INT; kill 0' INT # the steps in the background, too
# All is compiled as make build does it, so that each step finds the packages of the others, but without the profile of
# cmd/rdmabridge (deploy/bench/profile.sh): with it, all packages would be compiled twice.
export GOFLAGS="${GOFLAGS:-} -trimpath -pgo=off"

# cpu sets cpu to the seconds of processor time that the commands of this shell have had.
cpu() {
    local user system
    times > "$out/times.$BASHPID"
    { read -r _ && read -r user system; } < "$out/times.$BASHPID"
    user=${user%.*} system=${system%.*}
    cpu=$((${user%m*} * 60 + ${user#*m} + ${system%m*} * 60 + ${system#*m}))
}

# step NAME COMMAND...: runs a command. A silent one shows every 30 seconds that it is running.
step() {
    local name=$1 begun=$SECONDS rc=0 cpu before
    shift
    cpu
    before=$cpu
    "$@" 2>&1 | tee -a "$out/$name.log" | named "$name" || rc=$?
    cpu
    if [ $rc = 0 ]; then
        echo "done: $* ($((SECONDS - begun))s, $((cpu - before))s of CPU)" | named "$name"
    else
        echo "FAIL  $*" | named "$name"
        { echo "FAIL  $name: $*"; tail -n 15 "$out/$name.log" | sed 's/^/    /'; } >> "$out/failures"
        echo "0 1 0" >> "$out/tally"
    fi
}

# named begins every line with the time and a step's name.
named() {
    local line rc
    while true; do
        if IFS= read -r -t 30 line; then
            printf '%(%T)T %-5s %s\n' -1 "$1" "$line"
            continue
        else
            rc=$?
        fi
        [ $rc -gt 128 ] || break # the end of the output; a greater status is the time out of read
        printf '%(%T)T %-5s ...   still running\n' -1 "$1"
    done
}

# tests NAME SLOW ARG...: runs go test with these arguments by gotestsum, which shows a line for each package. Then tests shows
# which tests were skipped and why, what failed, and the tests that took longer than SLOW, and adds their numbers to the tally.
# It succeeds even when a test fails: the last line of this script looks at the tally.
tests() {
    local name=$1 slow=$2 json=$out/$1.json log=$out/$1.log rc=0 failed cpu before
    shift 2
    cpu
    before=$cpu
    "$out/gotestsum" --format pkgname --format-icons text --no-color --hide-summary all --jsonfile "$json" -- "$@" 2>&1 | named "$name" || rc=$?
    "$out/gotestsum" --raw-command --format standard-verbose --no-color -- cat "$json" > "$log" 2>&1 || true
    sed -n '/^=== \(Skipped\|Failed\|Errors\)$/,/^DONE /{/^DONE /!p}' "$log" | shortened | tee "$out/$name.summary" | named "$name"
    cpu
    echo "$((cpu - before))s of CPU" | named "$name"
    "$out/gotestsum" tool slowest --threshold "$slow" --jsonfile "$json" | sed 's|^github.com/rdmabridge/rdmabridge/|slow  |' | named "$name"
    failed=$(sed -n "s/^DONE .* \([0-9]*\) failures\{0,1\}.*/\1/p" "$log" | tail -n 1) # packages count that fail without a failed test
    echo "$(count pass "$json") ${failed:-0} $(count skip "$json")" >> "$out/tally"
    [ $rc = 0 ] || {
        touch "$out/failed"
        { echo "FAIL  $name"; sed -n '/^=== \(Failed\|Errors\)$/,$p' "$out/$name.summary"; } >> "$out/failures"
    }
}

# count ACTION FILE: how many tests ended so.
count() { grep -c "\"Action\":\"$1\".*\"Test\":" "$2"; }

# shortened cuts what each failed test printed to its messages, the first and the last lines of each, and what follows a sign of
# a crash. A bridge's log may have thousands of long lines, and what a script in the guest did not like is its last one.
shortened() {
    awk '
        function message(i) {
            for (i = 1; i <= n; i++)
                if (i <= 8 || i > n - 20) print substr(line[i], 1, 400)
                else if (i == 9) print "        ..."
            n = 0
        }
        /^=== |^DONE / { message(); crash = messages = 0 }
        /^ +[a-z0-9_]+\.go:[0-9]+: / && messages++ < 20 { message(); crash = 0 }
        /^panic: |^fatal error: |WARNING: DATA RACE/ { message(); crash = 80 }
        crash > 0 { crash--; print substr($0, 1, 400); next }
        { line[++n] = $0 }
        END { message() }'
}

# verdict is the last step: it shows all failures once more, and counts the tests in the last line.
verdict() {
    local passed failed skipped
    read -r passed failed skipped < <(awk '{p += $1; f += $2; s += $3} END {print p+0, f+0, s+0}' "$out/tally")
    [ ! -e "$out/failed" ] || [ "$failed" -gt 0 ] || failed=1
    [ ! -e "$out/failures" ] || cat "$out/failures"
    echo "$((SECONDS / 60)) minutes $((SECONDS % 60)) seconds; the log of every step is in ${out#"$PWD/"}"
    echo
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

# gotestsum builds what tests needs.
gotestsum() { step build go build -modfile=internal/tools/gotestsum.mod -o "$out/gotestsum" gotest.tools/gotestsum; }
