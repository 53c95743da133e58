#!/bin/bash
# mkinitrd.sh OUT [BINARY...]: packs the guest's initramfs: busybox, the NFS and
# RDMA tools, fio, the kernel modules, guest/init as /init, guest/*.sh under /lab,
# guest/*.c compiled beside them, and any further BINARY, with its shared
# libraries, in /usr/local/bin of the guest. Needs no root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LAB_CACHE=${LAB_CACHE:-/var/cache/rdmabridge-lab}
PATH=$PATH:/usr/sbin:/sbin
out=$1
shift
ver=$(cat "$LAB_CACHE/version")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
mkdir -p "$root"/{bin,sbin,usr/sbin,usr/bin,usr/local/bin,lib/modules,lib64,etc,proc,sys,dev,run,tmp,mnt,host,export,root,lab} \
    "$root"/etc/libibverbs.d "$root"/var/lib/nfs/{sm,sm.bak,rpc_pipefs,v4recovery}
ln -s /run "$root/var/run"

copy_with_libs() { # SRC [DST]
    local dst=$root${2:-$1}
    rm -f "$dst"
    mkdir -p "$(dirname "$dst")"
    cp -L "$1" "$dst"
    { ldd "$1" 2> /dev/null || true; } | { grep -oE '/[^ )]+' || true; } | while read -r lib; do
        mkdir -p "$root$(dirname "$lib")"
        [ -e "$root$lib" ] || cp -L "$lib" "$root$lib"
    done
}

# The applets first, then the real programs in the places where PATH finds them first.
cp /bin/busybox "$root/bin/"
for applet in $(/bin/busybox --list); do
    [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
done
for b in /usr/sbin/rpc.nfsd /usr/sbin/rpc.mountd /usr/sbin/rpc.statd /usr/sbin/exportfs /usr/sbin/mount.nfs \
    /usr/sbin/rpcbind /usr/sbin/rpcinfo /usr/bin/rdma /usr/sbin/ip /usr/bin/fio /usr/bin/cmp /usr/bin/rping; do
    [ -e "$b" ] || { echo "mkinitrd.sh: $b is missing: run install.sh" >&2; exit 1; }
    rm -f "$root/bin/$(basename "$b")"
    copy_with_libs "$b"
done
libdir=/usr/lib/x86_64-linux-gnu
for p in rxe siw; do
    copy_with_libs "$libdir/libibverbs/lib$p-rdmav34.so"
    cp "/etc/libibverbs.d/$p.driver" "$root/etc/libibverbs.d/"
done
copy_with_libs /lib/x86_64-linux-gnu/libnss_files.so.2
for b in "$@"; do copy_with_libs "$b" "/usr/local/bin/$(basename "$b")"; done
for c in "$here"/guest/*.c; do
    gcc -O2 -Wall -Werror -static -o "$root/lab/$(basename "$c" .c)" "$c"
done
install -m 755 "$here"/guest/*.sh "$root/lab/"
install -m 755 "$here/guest/init" "$root/init"

cp /etc/netconfig /etc/protocols /etc/services /etc/rpc "$root/etc/"
cat > "$root/etc/passwd" << 'EOF'
root:x:0:0:root:/root:/bin/sh
_rpc:x:107:65534::/run:/bin/sh
statd:x:108:65534::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh
EOF
printf 'root:x:0:\nnogroup:x:65534:\n' > "$root/etc/group"
echo 'hosts: files' > "$root/etc/nsswitch.conf"
echo '127.0.0.1 localhost guest' > "$root/etc/hosts"
echo 'ALL: ALL' > "$root/etc/hosts.allow"
touch "$root"/etc/hosts.deny "$root"/var/lib/nfs/{etab,rmtab,state}

modules=$root/lib/modules/$ver
for m in crc32_generic crc32c_generic crc32c-intel virtio_pci virtio_net virtio_rng 9pnet_virtio 9p \
    siw rdma_rxe rdma_ucm ib_uverbs rpcrdma nfsd nfs nfsv3 nfsv4 md5; do
    modprobe -d "$LAB_CACHE/root" -S "$ver" --show-depends "$m" 2> /dev/null || true
done | awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r f; do
    d=$modules/${f#*"/lib/modules/$ver/"}
    mkdir -p "$(dirname "$d")"
    cp "$f" "$d"
done
cp "$LAB_CACHE/root/lib/modules/$ver"/modules.{order,builtin,builtin.modinfo} "$modules/"
depmod -b "$root" "$ver"
mkdir -p "$(dirname "$out")"
(cd "$root" && find . | cpio -o -H newc --quiet | zstd -q -3) > "$out.tmp"
mv "$out.tmp" "$out"
