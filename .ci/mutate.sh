#!/bin/bash
# Shows that rows of docs/conformance.md can fail: it changes the code under each row of the table
# below, one line at a time, runs the conformance tests, and lists the rows that stay green.
# The tree is not touched: the compiler reads the changed file instead (go test -overlay).
#
#   .ci/mutate.sh [REGEXP]    only rows that match REGEXP
set -uo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# Role | the row's name as go test prints it, a regular expression | file | sed script
table() {
	cat <<'TABLE'
Responder|3.3.3_no_more_than_4096|rdmaside/rpcrdma/private_data.go|s/return PrivateData{SendSize: DefaultInline, RecvSize: DefaultInline}, false/return PrivateData{SendSize: 4096, RecvSize: 4096}, false/
Responder|8797_5.1_.*of_version_2|rdmaside/rpcrdma/private_data.go|s/w>>24 == privateDataVersion/w>>24 != 0/
Responder|8797_5.1_.*another_format|rdmaside/rpcrdma/private_data.go|s/0xf6, 0xab, 0x0e, 0x18}/0xf6, 0xab, 0x0e}/
Responder|8797_5.1_.*cut_short|rdmaside/rpcrdma/private_data.go|s/len(b)-i < privateDataLen/len(b)-i < 6/;s/binary.BigEndian.Uint32(b\[i+4:\])/binary.BigEndian.Uint32(append(b[i+4:len(b):len(b)], 3))/
Responder|4.5.2_.*Read_chunks_that_overlap|rdmaside/read_list.go|s/uint64(ch.position) < end {/false {/
Responder|4.5.2_.*behind_the_end_of_the_Payload|rdmaside/read_list.go|s/uint64(ch.position) > end+stream-used/false/
Responder|4.5.2_.*Read_chunk_of_4_GiB .*|rdmaside/read_list.go|s/total += n + -n&3; total > uint64(limit)/total += n + -n\&3; false/
Responder|4.5.2_.*Read_chunk_of_70,000|rdmaside/read_list.go|s/total += n + -n&3; total > uint64(limit)/total += n + -n\&3; false/
Responder|4.5.2_.*Zero_Read_chunk_of_70,000|rdmaside/read_list.go|s/if total > uint64(limit)/if false/
Responder|4.5.2_.*Zero_Read_chunk_of_4_GiB_more|rdmaside/read_list.go|s/length = h.ReadLength(0)/length = uint64(uint32(h.ReadLength(0)))/
Requester|8267_6.4.2|rdmaside/requester_send.go|s/^\t\t\th.AddRead(c.Analysis.ArgPosition, .*/&; h.AddRead(c.Analysis.ArgPosition+4, rpcrdma.Segment{})/
Requester|3.5.3_every_segment|rdmaside/requester_send.go|s/^\t\t\th.AddRead(0, .*/&; h.AddRead(4, rpcrdma.Segment{})/
Requester|4.2.4_the_total_length|rdmaside/rpcrdma/private_data.go|s/return PrivateData{SendSize: DefaultInline, RecvSize: DefaultInline}, false/return PrivateData{SendSize: 4096, RecvSize: 4096}, false/
Requester|4.4.1_.*pass_their_deadline|rdmaside/requester_deadline.go|s/^\tr.end(fmt.Errorf("%w: %s, xid.*/\tpc.handles, pc.err = [callHandles]fabric.Handle{}, ErrDeadline; r.finish(pc)/;s/^\t"time"$/&\n\n\t"github.com\/rdmabridge\/rdmabridge\/rdmaside\/fabric"/
Requester|4.4.1_.*closed_here|rdmaside/requester_state.go|s/^\t\tr.conn.Close(err)/for r.oldest >= 0 { pc := \&r.slots[r.oldest]; pc.handles, pc.err = [callHandles]fabric.Handle{}, err; r.finish(pc) }; &/
Responder|3.4.5_the_value_in_this_field|rdmaside/rpcrdma/decode.go|s/position%4 != 0/false/
Responder|4.5.2_.*more_Write_chunks|rdmaside/rpcrdma/decode.go|s/len(h.Writes) >= maxWrites/false/
TABLE
}

green=0 rows=0
while IFS='|' read -r role row file script; do
	[[ "$role $row" =~ ${1:-} ]] || continue
	rows=$((rows + 1))
	sed "$script" "$file" >"$dir/changed.go"
	if cmp -s "$file" "$dir/changed.go"; then
		echo "NO SUCH LINE  $role $row: $file"
		green=$((green + 1))
		continue
	fi
	printf '{"Replace": {"%s": "%s"}}' "$PWD/$file" "$dir/changed.go" >"$dir/overlay.json"
	go test -vet=off -overlay "$dir/overlay.json" -count=1 -timeout 5m -v -run "^TestConformance$role\$" ./rdmaside >"$dir/out" 2>&1
	if grep -q '\[build failed\]' "$dir/out"; then
		echo "DOES NOT COMPILE  $role $row"
		grep -m 3 '^[a-z].*\.go:' "$dir/out"
		green=$((green + 1))
	elif grep -q -- "--- FAIL: TestConformance$role/$row" "$dir/out"; then
		echo "red    $role $row"
	elif grep -q '^panic: \|^fatal error: ' "$dir/out" && grep '^=== RUN' "$dir/out" | tail -1 | grep -q "/$row"; then
		echo "red    $role $row (panic)"
	else
		echo "GREEN  $role $row"
		green=$((green + 1))
	fi
done < <(table)
echo "$rows changes, $green of them not seen"
[ "$green" -eq 0 ]
