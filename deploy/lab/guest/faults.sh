#!/bin/sh
# faults.sh VERS HOST PORT [MOUNTPORT] uses a server that injects faults: it makes, writes, reads, renames
# and removes files, and compares the data. It fails if data differ, if a name is there twice or not at all,
# or if an operation fails. With ERRORS=allowed it counts operations that fail and data that differ, and goes on. It prints what the
# kernel's client has counted and logged. ROUNDS (default 4) is the number of files. BLOCK (default 32k) is
# the length of a READ.
. /lab/lib.sh
echo "lab: begin $$" > /dev/kmsg
export TIMEO=${TIMEO:-50}
begun=$(date +%s)
trap 'umount -l /mnt 2> /dev/null' EXIT # also after a test that fails
do_mount
d=/mnt/faults-$vers-$port-$$
errors=0
# try COMMAND... runs a command, which has to succeed unless ERRORS=allowed.
try() {
    "$@" 2> "/tmp/err.$$" && return 0
    rc=$?
    [ "$ERRORS" = allowed ] || die "$*: status $rc: $(cat "/tmp/err.$$")"
    errors=$((errors + 1))
    echo "failed: $1: $(sed -n '1s/.*: //p' "/tmp/err.$$")"
    return $rc
}
try mkdir "$d"
random 262144 > "/tmp/faults.$$"
n=0
while [ $n -lt "${ROUNDS:-4}" ]; do
    n=$((n + 1))
    # A file that could not be written is not compared.
    if try dd if="/tmp/faults.$$" of="$d/$n" bs=64k conv=fsync; then
        if try dd if="$d/$n" of="/tmp/back.$$" bs="${BLOCK:-32k}" iflag=direct; then
            if ! cmp "/tmp/faults.$$" "/tmp/back.$$"; then
                [ "$ERRORS" = allowed ] || die "what was read in round $n"
                errors=$((errors + 1))
                echo "WRONG DATA in round $n"
            fi
        fi
    fi
    try ls -l "$d" > /dev/null
    try mv "$d/$n" "$d/renamed-$n"
done
try rm "$d"/*
try rmdir "$d"
echo "took $(($(date +%s) - begun)) s, $errors errors"
# port bind connects connect_time idle sends receives bad_xids requests backlog, then the counters of rdma:
# reads writes replies octets_out octets_in pullup fixup hardway failed_marshal bad_reply nomsg ...
awk '/^device/ { on = $5 == "/mnt" } on && /xprt:/' /proc/self/mountstats
kernel_log | sed "1,/lab: begin $$/d" | grep -iE 'rpc|nfs|siw|rdma' | sed 's/^/kernel: /' | head -20
do_umount
if kernel_log | sed "1,/lab: begin $$/d" | grep -iE 'bug|oops|call trace|hung|cut here|lockdep'; then
    die "see the kernel's log above"
fi
echo PASS
