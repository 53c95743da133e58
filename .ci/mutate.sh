#!/bin/bash
# Shows that the rows of docs/conformance.md can fail: it makes each change of .ci/mutations.txt,
# one at a time, runs the conformance tests, and lists the rows that stay green. It fails, too, if a
# change does not compile, and if a row has no change. If a change fits its file no longer, it says so and tests nothing.
# The tree is not touched: the compiler reads the changed files instead (go build -overlay).
#
#   .ci/mutate.sh [REGEXP]    only the changes that have a row which matches REGEXP
#   .ci/mutate.sh --fit       only whether each change fits its file
set -uo pipefail
cd "$(dirname "$0")/.." || exit
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export LC_ALL=C dir table=.ci/mutations.txt

# build BINARY [FLAG...] compiles the tests, as fast as it can.
build() {
	go test -c -vet=off -ldflags='-s -w' -gcflags='github.com/rdmabridge/rdmabridge/...=-N -l -dwarf=false' \
		"${@:2}" -o "$1" ./rdmaside
}

# run BINARY REGEXP runs rows and prints what they print.
run() { (cd rdmaside && timeout 60 "$1" -test.v -test.run "$2" 2>&1); }

# rows TEXT prints the row that TEXT is, or all that begin with TEXT, as go test names them.
rows() {
	local name=${1/ //}
	name=${name// /_}
	grep -xF -- "$name" "$dir/rows" || name=$name awk 'index($0, ENVIRON["name"]) == 1' "$dir/rows"
}

# change N writes the overlay of change N to $dir/N.
change() {
	local file= old= line out overlay=
	while read -r line; do
		case $line in
		'in '*)
			file=${line#in } out=$dir/$1/${file//\//_}
			cp "$file" "$out" || return
			overlay+=",\"$PWD/$file\": \"$out\""
			;;
		'- '*) old=${line#- } ;;
		'+'*)
			local text rest
			text=$(cat "$out") rest=${text#*"$old"}
			[ "$rest" != "$text" ] || { echo "NOT FOUND in $file: $old"; return 1; }
			[ "${rest#*"$old"}" = "$rest" ] || { echo "FOUND TWICE in $file: $old"; return 1; }
			line=${line#+}
			printf '%s\n' "${text%%"$old"*}${line# }$rest" >"$out"
			;;
		esac
	done <"$dir/$1/change"
	echo "{\"Replace\": {${overlay#,}}}" >"$dir/$1/overlay.json"
}

# try N prints what the rows of change N make of it. Words in capitals mean that it was not seen.
try() {
	local d=$dir/$1 row text
	if ! build "$d/test" -overlay "$d/overlay.json" >"$d/out" 2>&1; then
		echo "DOES NOT COMPILE: $(grep -m 1 '^+ ' "$d/change") $(grep -m 1 '\.go:[0-9]' "$d/out")"
		return
	fi
	sed -n 's/^red //p' "$d/change" | while read -r text; do
		rows "$text" | grep . || echo "NO SUCH ROW  $text" >&3
	done 3>&1 >"$d/rows"
	while read -r row; do
		see "$d" "$row"
	done <"$d/rows"
	rm "$d/test"
}

# see DIR ROW runs the tests of DIR and prints whether ROW is red, and why.
see() {
	local d=$1 row=$2 role=${2%%/*} name why
	name=$(sed 's/[][().*+?^$|\\{}]/\\&/g' <<<"${row#*/}")
	run "$d/test" "^TestConformance$role\$/^$name\$" >"$d/out"
	# A row about all messages needs the other rows.
	! grep -q ' messages show nothing' "$d/out" || run "$d/test" "^TestConformance$role\$" >"$d/out"
	if grep -qF -- "--- FAIL: TestConformance$row (" "$d/out"; then
		why=$(row=$row awk '$1 == "===" { its = index($3, "TestConformance" ENVIRON["row"]) == 1 } its && /_test\.go:/ { print; exit }' "$d/out")
		[ -n "$why" ] || why=$(grep -m 1 '^panic: \|^fatal error: ' "$d/out")
	elif grep '^=== RUN' "$d/out" | tail -1 | grep -qF " TestConformance$row"; then
		why=$(grep -m 1 '^panic: \|^fatal error: ' "$d/out")
	fi
	if [ -n "$why" ]; then
		echo "red    $row"
		echo "       ${why:0:160}"
	else
		echo "GREEN  $row"
	fi
}
export -f build run rows see try

fit=
[ "${1:-}" != --fit ] || { fit=1; shift; }

# The changes are paragraphs.
awk -v RS= -v regexp="${1:-}" -v dir="$dir" '/^in / && (regexp == "" || $0 ~ "\nred [^\n]*(" regexp ")") {
	d = sprintf("%s/%03d", dir, ++n); system("mkdir " d); print > (d "/change"); close(d "/change") }' "$table"
[ -e "$dir/001" ] || { echo "No change has a row that matches $1."; exit 1; }
stale=
for d in "$dir"/[0-9]*; do change "$(basename "$d")" || stale=1; done
[ -z "$stale" ] || { echo "Mend these changes in $table."; exit 1; }
[ -z "$fit" ] || exit 0

# What the rows are, and that they are green.
build "$dir/test" || exit
run "$dir/test" '^TestConformance' >"$dir/out" || { echo "The tests fail without any change."; exit 1; }
sed -n 's/^    --- PASS: TestConformance\([A-Za-z]*\)\/\(.*\) (.*/\1\/\2/p' "$dir/out" >"$dir/rows"

for d in "$dir"/[0-9]*; do basename "$d"; done |
	xargs -P "${MUTATE_JOBS:-2}" -I N bash -c 'try N >"$dir/N/result"; cat "$dir/N/result"'
cat "$dir"/[0-9]*/result >"$dir/results"
if [ -z "${1:-}" ]; then
	sed -n 's/^\(red\|GREEN\) *//p' "$dir/results" | sort -u >"$dir/named"
	sort -u "$dir/rows" | comm -23 - "$dir/named" | sed 's/^/NO CHANGE  /' | tee -a "$dir/results"
fi
count() { grep -c "$1" "$dir/results"; }
echo "$(wc -l <"$dir/rows") rows, $(ls -d "$dir"/[0-9]* | wc -l) changes: $(count '^red') times red, $(count '^GREEN') green, $(count '^NO\|^DOES') not in order"
! grep -q '^[A-Z]' "$dir/results"
