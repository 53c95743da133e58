#!/bin/bash
# mkinitrd.sh [--tls|--smoke|--systemd] OUT [BINARY...] packs the guest's initramfs: busybox, the NFS and RDMA tools, fio,
# the kernel modules, guest/init as /init, guest/*.sh under /lab, guest/*.c compiled beside
# them, and each further BINARY, with its shared libraries, in /usr/local/bin of the guest. With
# --tls it is for the kernel with RPC-with-TLS, and has tlshd. With --smoke it has only what TestLabSmoke uses. With
# --systemd it has this host's systemd for PID 1. It needs no root.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LAB_CACHE=${LAB_CACHE:-/var/cache/rdmabridge-lab}
PATH=$PATH:/usr/sbin:/sbin
tls='' all=1 systemd=''
case $1 in
--tls) tls=1 LAB_CACHE+=/tls ;;
--smoke) all='' ;;
--systemd) systemd=1 ;;
esac
case $1 in --*) shift ;; esac
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
    copy_libs "$1"
}

copy_libs() { # OF
    { ldd "$1" 2> /dev/null || true; } | { grep -oE '/[^ )]+' || true; } | while read -r lib; do
        case $lib in "$root"/*) continue ;; esac # a stub
        mkdir -p "$root$(dirname "$lib")"
        [ -e "$root$lib" ] || cp -L "$lib" "$root$lib"
    done
}

# stub PROGRAM LIBRARY... gives a program in the place of each library one of the same name with those
# functions that the program names; they abort. The libraries that it needed are not copied.
stub() {
    local program=$1 lib real dir=$root/lib/x86_64-linux-gnu
    mkdir -p "$dir"
    shift
    for lib in "$@"; do
        real=$(ldd "$program" | awk -v lib="$lib" '$1 == lib { print $3 }')
        # Lines of a function and its version; some libraries have no versions.
        join <(nm -D --undefined-only "$program" | awk '{ print $2 }' | sort) \
            <(nm -D --defined-only "$real" | awk '{ sub("@@", "@"); print $3 }' | sort) | tr @ ' ' > "$dir/stub"
        awk '{ print "void " $1 "(void) { __builtin_abort(); }" }' "$dir/stub" > "$dir/stub.c"
        awk 'NF == 2 { of[$2] = of[$2] $1 "; " } END { for (v in of) print v " { " of[v] "};"; if (!NR || NF < 2) print "{ *; };" }' "$dir/stub" > "$dir/stub.map"
        gcc -shared -fPIC -O1 -o "$dir/$lib" -Wl,-soname="$lib" -Wl,--version-script="$dir/stub.map" "$dir/stub.c"
        rm "$dir"/stub*
    done
    LD_LIBRARY_PATH=$dir copy_with_libs "$program"
}

# Real programs replace the applets of the same name, so install the applets first.
cp /bin/busybox "$root/bin/"
for applet in $(/bin/busybox --list); do
    [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
done
programs=(
    /usr/sbin/rpc.nfsd /usr/sbin/rpc.mountd /usr/sbin/rpc.statd /usr/sbin/exportfs /usr/sbin/mount.nfs
    /usr/sbin/rpcbind /usr/bin/rdma /usr/sbin/ip /usr/bin/cmp
)
[ -z "$all" ] || programs+=(
    /usr/sbin/rpcinfo /usr/sbin/sm-notify /usr/bin/rping
    /usr/sbin/rpc.gssd /usr/sbin/rpc.svcgssd /usr/sbin/rpc.idmapd /usr/sbin/krb5kdc /usr/sbin/kdb5_util
    /usr/sbin/kadmin.local /usr/bin/kinit /usr/bin/klist /usr/bin/getfacl /usr/bin/setfacl /usr/bin/getfattr
    /usr/bin/setfattr /usr/bin/nfs4_getfacl /usr/bin/nfs4_setfacl /usr/sbin/mkfs.xfs /usr/sbin/dmsetup
)
for b in "${programs[@]}"; do
    [ -e "$b" ] || { echo "mkinitrd.sh: $b is missing: run install.sh" >&2; exit 1; }
    rm -f "$root/bin/$(basename "$b")"
    copy_with_libs "$b"
done
# That of busybox, which the other tests use, calls no helper for a type that it does not know.
[ -z "$all" ] || copy_with_libs /usr/bin/mount /lab/mount
# Ceph, Gluster and others, of which fio needs none here: to load them takes a second of emulation.
[ -z "$all" ] || stub /usr/bin/fio librbd.so.1 librados.so.2 libgfapi.so.0 libnbd.so.0 libpmemblk.so.1 libpmem.so.1
libdir=/usr/lib/x86_64-linux-gnu
# rdmabridge opens these two at run time, so ldd does not know of them.
for b in $libdir/libibverbs.so.1 $libdir/librdmacm.so.1; do copy_with_libs "$b"; done
for p in rxe siw; do
    copy_with_libs "$libdir/libibverbs/lib$p-rdmav34.so"
    cp "/etc/libibverbs.d/$p.driver" "$root/etc/libibverbs.d/"
done
for b in /lib/x86_64-linux-gnu/libnss_files.so.2 $libdir/libnfsidmap/nsswitch.so $libdir/libnfsidmap/static.so \
    /lib/x86_64-linux-gnu/libgcc_s.so.1; do # pthread_exit opens the last one
    copy_with_libs "$b"
done
[ -z "$all" ] || for b in $libdir/krb5/plugins/kdb/db2.so /lib/x86_64-linux-gnu/libverto-libev.so.1; do copy_with_libs "$b"; done
[ -z "$tls" ] || copy_with_libs "$LAB_CACHE/root/usr/sbin/tlshd" /usr/sbin/tlshd
for b in "$@"; do copy_with_libs "$b" "/usr/local/bin/$(basename "$b")"; done
if [ -n "$systemd" ]; then
    for b in /bin/{mount,umount,systemctl,journalctl,systemd-notify} /usr/bin/systemd-run /lib/systemd/systemd{,-journald,-shutdown} \
        /lib/systemd/system-generators/systemd-fstab-generator; do
        copy_with_libs "$b"
    done
    for u in {basic,sysinit,local-fs-pre,local-fs,remote-fs-pre,remote-fs,network,network-online,multi-user,sockets}.target \
        {shutdown,umount,final,poweroff}.target systemd-poweroff.service systemd-journald{.service,.socket,-dev-log.socket}; do
        install -Dm 644 "/lib/systemd/system/$u" "$root/lib/systemd/system/$u"
    done
    units=$root/etc/systemd/system
    mkdir -p "$units"/{multi-user.target.wants,sockets.target.wants}
    ln -s /lib/systemd/system/multi-user.target "$units/default.target"
    install -m 644 "$here/guest/lab.service" "$units/"
    ln -s ../lab.service /lib/systemd/system/remote-fs.target "$units/multi-user.target.wants/"
    ln -s /lib/systemd/system/systemd-journald{,-dev-log}.socket "$units/sockets.target.wants/"
    printf '[Manager]\nDefaultTimeoutStartSec=10min\n' > "$root/etc/systemd/system.conf" # emulation is slow
    echo 0123456789abcdef0123456789abcdef > "$root/etc/machine-id"
    for name in mount umount; do
        ln -s /usr/local/bin/rdmabridge "$root/sbin/$name.rdmabridge"
        ln -s /usr/sbin/mount.nfs "$root/sbin/$name.nfs"
        ln -s /usr/sbin/mount.nfs "$root/sbin/$name.nfs4"
    done
fi
sources=("$here"/guest/*.c)
[ -n "$all" ] || sources=("$here/guest/locks.c")
for c in "${sources[@]}"; do
    link=(-static)
    case $c in */xids.c) link=(-I/usr/include/tirpc -ltirpc) ;; esac # Kerberos has no static libraries
    gcc -O2 -Wall -Werror -o "$root/lab/$(basename "$c" .c)" "$c" "${link[@]}"
    copy_libs "$root/lab/$(basename "$c" .c)"
done
install -m 755 "$here"/guest/*.sh "$root/lab/"
install -m 755 "$here/guest/init" "$root/init"

cp /etc/netconfig /etc/protocols /etc/services /etc/rpc "$root/etc/"
cat > "$root/etc/passwd" << 'EOF'
root:x:0:0:root:/root:/bin/sh
_rpc:x:107:65534::/run:/bin/sh
statd:x:108:65534::/:/bin/sh
alice:x:1000:1000::/:/bin/sh
bob:x:1001:1001::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh
EOF
printf 'root:x:0:\nalice:x:1000:\nbob:x:1001:\nnogroup:x:65534:\n' > "$root/etc/group"
printf '%s: files\n' passwd group hosts > "$root/etc/nsswitch.conf"
printf '%s\n' '127.0.0.1 localhost' '10.0.2.15 guest.lab guest' '10.0.2.2 bridge.lab bridge' > "$root/etc/hosts"
echo 'ALL: ALL' > "$root/etc/hosts.allow"
touch "$root"/etc/hosts.deny "$root"/var/lib/nfs/{etab,rmtab,state}

modules=$root/lib/modules/$ver
for m in crc32_generic crc32c_generic crc32c-intel virtio_pci virtio_net virtio_rng 9pnet_virtio 9p \
    siw rdma_rxe rdma_ucm ib_uverbs rpcrdma nfsd nfs nfsv3 nfsv4 md5 \
    auth_rpcgss rpcsec_gss_krb5 cts loop xfs blocklayoutdriver ipvlan veth ip_vs ip_vs_sh virtio_blk ext4 dm-mod dm-delay \
    ${tls:+tls gcm ghash-generic}; do
    modprobe -d "$LAB_CACHE/root" -S "$ver" --show-depends "$m" 2> /dev/null || true
done | awk '/^insmod/ && !seen[$2]++ {print $2}' | while read -r f; do
    d=$modules/${f#*"/lib/modules/$ver/"}
    mkdir -p "$(dirname "$d")"
    case $f in
    *.xz) xz -dc "$f" > "${d%.xz}" ;;
    *) cp "$f" "$d" ;;
    esac
done
cp "$LAB_CACHE/root/lib/modules/$ver"/modules.{order,builtin,builtin.modinfo} "$modules/"
depmod -b "$root" "$ver"
mkdir -p "$(dirname "$out")"
(cd "$root" && find . | cpio -o -H newc --quiet) > "$out.tmp" # not compressed: an emulated CPU unpacks slowly
mv "$out.tmp" "$out"
