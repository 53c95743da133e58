#!/bin/bash
# install.sh: puts in place what the lab needs, as root on Debian 12:
#
#   packages   QEMU, the NFS and RDMA tools, fio, libnfs-utils, tshark
#   kernel     Debian's own, unpacked under $LAB_CACHE/root and never installed
#   siw.ko     built from Debian's source package: Debian ships only rxe. One line is
#              mended on the way: an FPDU whose CRC arrives in two TCP segments fails
#              there, because the second half is put where the first one was. On a wire
#              that is rare; QEMU's user network cuts the stream anew and makes it
#              common, and the knfsd threads that wait for such a Read never return.
#
# Every download is a Debian package. Run again it asks nothing of the network and
# ends at once; LAB_REFRESH=1 fetches the newest kernel of this Debian release.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
LAB_CACHE=${LAB_CACHE:-/var/cache/rdmabridge-lab}
siw_revision=2 # raised when the build of siw.ko below changes

packages=(
    qemu-system-x86 busybox-static kmod cpio zstd xz-utils make gcc libc6-dev bc libelf-dev diffutils
    iproute2 nfs-kernel-server nfs-common rpcbind rdma-core ibverbs-providers ibverbs-utils rdmacm-utils
    fio libnfs-utils tcpdump tshark
)

missing=()
for p in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || missing+=("$p")
done
have=$(cat "$LAB_CACHE/version" 2>/dev/null || true)
siw=$(cat "$LAB_CACHE/siw-$have" 2>/dev/null || true)
if [ ${#missing[@]} = 0 ] && [ -n "$have" ] && [ "$siw" = "$siw_revision" ] && [ -z "${LAB_REFRESH:-}" ]; then
    echo "lab: kernel $have and every package are in place"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "lab: install.sh needs root (missing packages: ${missing[*]:-none}; kernel: ${have:-none})" >&2
    exit 1
fi

mkdir -p "$LAB_CACHE"
exec 9> "$LAB_CACHE/lock" # of two runs at once the second waits and finds the work done
flock 9
apt-get update -qq
[ ${#missing[@]} = 0 ] || apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # apt downloads as its own user
cd "$work"

# linux-image-amd64 names the newest kernel of this Debian release.
image=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
ver=$(cat "$LAB_CACHE/version" 2>/dev/null || true)
if [ -z "$ver" ] || [ -n "${LAB_REFRESH:-}" ] && [ "$ver" != "${image#linux-image-}" ]; then
    ver=${image#linux-image-}
    apt-get download -qq "$image"
    rm -rf "$LAB_CACHE/root"
    mkdir -p "$LAB_CACHE/root"
    dpkg -x "$image"_*.deb "$LAB_CACHE/root"
fi

if [ "$(cat "$LAB_CACHE/siw-$ver" 2>/dev/null || true)" != "$siw_revision" ]; then
    apt-get install -y -qq --no-install-recommends "linux-headers-$ver" linux-source-6.1 > /dev/null
    dir=linux-source-6.1/drivers/infiniband/sw/siw
    tar -xf /usr/src/linux-source-6.1.tar.xz "$dir"
    sed -i 's/skb_copy_bits(skb, srx->skb_offset, tbuf, avail);/skb_copy_bits(skb, srx->skb_offset, tbuf + srx->pad + MPA_CRC_SIZE - srx->fpdu_part_rem, avail);/' \
        "$dir/siw_qp_rx.c"
    make -s -C "/usr/src/linux-headers-$ver" M="$work/$dir" CONFIG_RDMA_SIW=m modules 2> make.log ||
        { cat make.log >&2; exit 1; }
    extra=$LAB_CACHE/root/lib/modules/$ver/extra
    mkdir -p "$extra"
    strip --strip-debug -o "$extra/siw.ko.new" "$dir/siw.ko"
    mv "$extra/siw.ko.new" "$extra/siw.ko"
    depmod -b "$LAB_CACHE/root" "$ver"
    echo "$siw_revision" > "$LAB_CACHE/siw-$ver"
fi
echo "$ver" > "$LAB_CACHE/version" # last: a run cut short starts over
echo "lab: kernel $ver prepared in $LAB_CACHE"
