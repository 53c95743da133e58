#!/bin/bash
# test-contents.sh PACKAGES looks into the packages of both architectures in PACKAGES/0.1.0, made by packages.sh: all
# have the same files, of root and with the modes that they are to have, and say the same of themselves. The binary for
# the other architecture runs under QEMU's emulation of a user's processes, and carries files through its demo.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$1/0.1.0
work=$(mktemp -d)
demo=
trap '[ -z "$demo" ] || kill "$demo" 2> /dev/null || true; rm -rf "$work"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
rpm() { command rpm --dbpath "$work/rpmdb" "$@"; }

# list prints a line for each file: mode, owner and group, name. Debian's packages also list /usr and the like.
list() { # PACKAGE
    case $1 in
    *.deb) dpkg-deb -c "$1" | awk '{ sub(/^\./, "", $6); sub(/\/$/, "", $6); print $1, $2, $6 }' ;;
    *.rpm) rpm -qlvp "$1" | awk '{ print $1, $3 "/" $4, $9 }' ;;
    esac | sed 's|/zsh/site-functions/|/zsh/vendor-completions/|' | grep -E '/s?bin/.|rdmabridge' | grep -vx 'drwxr-xr-x root/root /etc/rdmabridge' | LC_ALL=C sort -k 3
}
for p in "$packages"/rdmabridge_*.deb "$packages"/rdmabridge-[0-9]*.rpm; do list "$p" > "$work/$(basename "$p").list"; done
all=("$work"/*.list)
[ ${#all[@]} = 4 ] || fail "packages: ${all[*]}"
for l in "${all[@]:1}"; do diff "${all[0]}" "$l" || fail "$(basename "$l") has other files than $(basename "${all[0]}")"; done
for f in /usr/bin/rdmabridge /usr/bin/rdmabridge-bench /usr/lib/rdmabridge/hand-over; do
    grep -qx -- "-rwxr-xr-x root/root $f" "${all[0]}" || fail "no $f"
    sed -i "\\| $f\$|d" "${all[0]}"
done
for f in /usr/sbin/mount.rdmabridge /usr/sbin/umount.rdmabridge; do
    grep -qE "^l.{9} root/root $f\$" "${all[0]}" || fail "no link $f"
    sed -i "\\| $f\$|d" "${all[0]}"
done
! grep -vE '^(drwxr-xr-x|-rw-r--r--|l.{9}) root/root ' "${all[0]}" || fail "the modes or owners above"
for program in rdmabridge rdmabridge-bench; do go run ./cmd/$program man "$work/man" > /dev/null; done
ls "$work/man" | sed 's|.*|/usr/share/man/man1/&.gz|' | LC_ALL=C sort > "$work/pages"
awk '$3 ~ "^/usr/share/man/" { print $3 }' "${all[0]}" | diff "$work/pages" - || fail "the manual pages above"
rpm -qpc "$packages"/rdmabridge-[0-9]*.rpm | sort -u | grep -qx /etc/rdmabridge/annotated.yaml || fail "no configuration file"
echo "$(wc -l < "${all[1]}") files and directories in each of four packages: the same, of root, none writable by others"

# The documents lie so that their links lead somewhere.
dpkg-deb --fsys-tarfile "$packages"/rdmabridge_*_arm64.deb | tar -xC "$work" ./usr/share/doc
RDMABRIDGE_DOCUMENTS=$work/usr/share/doc/rdmabridge go test -count=1 -vet=off -run '^TestLinksInDocs$' ./cmd/rdmabridge

for p in "$packages"/rdmabridge_*.deb; do
    dpkg-deb -f "$p" Package Version Maintainer Homepage
    [ -z "$(dpkg-deb -f "$p" Depends)" ] || fail "$p depends on something: the binary is static"
done | sort -u > "$work/says"
for p in "$packages"/rdmabridge-[0-9]*.rpm; do
    rpm -qp --qf 'Package: %{NAME}\nVersion: %{VERSION}-%{RELEASE}\nMaintainer: %{PACKAGER}\nHomepage: %{URL}\n' "$p"
    [ "$(rpm -qp --qf '%{BUILDHOST}' "$p")" = localhost ] || fail "$p names the host that it was built on"
done | sort -u > "$work/says.rpm"
diff "$work/says" "$work/says.rpm" && [ "$(wc -l < "$work/says")" = 4 ] || fail "the packages say different things of themselves: $(cat "$work/says")"
cat "$work/says"

for p in "$packages"/rdmabridge_*.deb; do
    breaks=$(dpkg-deb -f "$p" Breaks)
    [ "$breaks" = 'rdmabridge-ibverbs (<< 0.1.0-1)' ] || fail "$p breaks ${breaks:-nothing}"
done

# What RDMA devices need besides has the same files in both formats, and needs no newer libc than it says.
list "$packages"/rdmabridge-ibverbs_*_amd64.deb > "$work/ibverbs.list"
list "$packages"/rdmabridge-ibverbs-*.x86_64.rpm | diff "$work/ibverbs.list" - || fail "the packages of ibverbs have other files"
grep -qx -- '-rwxr-xr-x root/root /usr/bin/rdmabridge-ibverbs' "$work/ibverbs.list" || fail "no rdmabridge-ibverbs"
depends=$(dpkg-deb -f "$packages"/rdmabridge-ibverbs_*_amd64.deb Depends)
[ "$depends" = 'rdmabridge (= 0.1.0-1), libc6 (>= 2.34), libibverbs1, librdmacm1' ] || fail "rdmabridge-ibverbs depends on $depends"
libc=$(objdump -T "$packages"/rdmabridge-0.1.0-linux-amd64/rdmabridge{,-bench}-ibverbs | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
[ "$(printf 'GLIBC_2.34\n%s\n' "$libc" | sort -V | tail -1)" = GLIBC_2.34 ] || fail "rdmabridge-ibverbs needs $libc"
echo "rdmabridge-ibverbs depends on $depends"

# The binary of arm64, out of either package.
dpkg-deb --fsys-tarfile "$packages"/rdmabridge_*_arm64.deb | tar -xO ./usr/bin/rdmabridge > "$work/rdmabridge"
{ rpm2cpio "$packages"/rdmabridge-*.aarch64.rpm || true; } | cpio -i --quiet --to-stdout '*usr/bin/rdmabridge' | cmp - "$work/rdmabridge" ||
    fail "the .rpm has another binary than the .deb"
chmod +x "$work/rdmabridge"
arm64() { qemu-aarch64-static "$work/rdmabridge" "$@"; }
arm64 version | grep '^rdmabridge 0\.1\.0, .*linux/arm64' || fail "version: $(arm64 version)"
for f in configs/examples/gateway.yaml configs/examples/reverse.yaml; do arm64 check -c "$f" || fail "check"; done
: > "$work/demo.log"
qemu-aarch64-static "$work/rdmabridge" demo --admin none > "$work/demo.log" 2>&1 &
demo=$!
for _ in $(seq 300); do
    url=$(sed -n "s/.*nfs-cp README.md '\(.*\)hello\(.*\)'.*/\1 \2/p" "$work/demo.log")
    [ -z "$url" ] || break
    kill -0 $demo || fail "the demo ended: $(cat "$work/demo.log")"
    sleep 0.1
done
[ -n "$url" ] || fail "the demo does not start: $(cat "$work/demo.log")"
there=${url% *}file${url#* }
head -c 5M /dev/urandom > "$work/in"
nfs-cp "$work/in" "$there" && nfs-cp "$there" "$work/out" || fail "nfs-cp: $(cat "$work/demo.log")"
cmp "$work/in" "$work/out" || fail "wrong octets"
kill $demo
wait $demo || fail "the demo ended with $?: $(cat "$work/demo.log")"
demo=
echo "the binary for arm64 carried 5 MiB there and back through its demo"
