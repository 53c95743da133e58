#!/bin/bash
# install.sh installs what the lab needs, as root on Debian 12:
#
#   packages   QEMU, the NFS and RDMA tools, rdma-core's headers, Kerberos, ACL tools, fio, libnfs-utils,
#              tshark, nfs-ganesha, HAProxy, and Chromium with a font for the tests of the status page.
#   promtool   Prometheus' own tool, taken out of Debian's package, which would start a server at port 9090.
#   kernel     Debian's own, unpacked under $LAB_CACHE/root and never installed. The file
#              vmlinux-VERSION has it as ELF, which boots without the 5 s of decompression
#              that an emulated CPU needs for Debian's vmlinuz.
#   siw.ko     Built from Debian's source package, because Debian ships only rxe. This script
#              patches two lines. First, siw fails an FPDU whose CRC arrives in two TCP
#              segments, because it stores the second half over the first. On a wire this is
#              rare, but QEMU's user network cuts the stream anew and makes it common, and
#              the knfsd threads that wait for such a Read never return. Second, a connection
#              that is closed before siw has accepted it takes the listener with it, because
#              a socket that is not yet accepted still points at the listener.
#   auth_rpcgss.ko  Built and patched too. In late 6.1 the server skips the length and the
#              sequence number of a krb5p Call in a stream, and nfsd then opens the stream
#              again, so that it reads them as the arguments: every krb5p Call gets
#              GARBAGE_ARGS.
#
# Every download is a Debian package. A second run uses no network and ends at once;
# LAB_REFRESH=1 fetches the newest kernel of this Debian release.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
LAB_CACHE=${LAB_CACHE:-/var/cache/rdmabridge-lab}
built_revision=4 # increase this whenever the build of modules below changes

packages=(
    qemu-system-x86 busybox-static kmod cpio zstd xz-utils make gcc libc6-dev bc libelf-dev diffutils
    iproute2 nfs-kernel-server nfs-common rpcbind rdma-core ibverbs-providers ibverbs-utils rdmacm-utils
    libibverbs-dev librdmacm-dev
    krb5-kdc krb5-admin-server krb5-user libtirpc-dev libkrb5-dev acl attr nfs4-acl-tools xfsprogs dmsetup
    fio libnfs-utils chromium fonts-dejavu-core tcpdump tshark nfs-ganesha nfs-ganesha-vfs groff-base haproxy
)

# unpack_kernel VERSION takes the ELF image out of a bzImage: Documentation/arch/x86/boot.rst in
# Linux describes the fields setup_sects, payload_offset and payload_length.
unpack_kernel() {
    local vmlinuz=$LAB_CACHE/root/boot/vmlinuz-$1 vmlinux=$LAB_CACHE/vmlinux-$1
    field() { od -An -t "u$2" -j "$1" -N "$2" "$vmlinuz" | tr -d ' '; }
    local begin=$((($(field 0x1f1 1) + 1) * 512 + $(field 0x248 4))) length
    length=$(field 0x24c 4)
    # The last four octets are the length of the decompressed image.
    dd if="$vmlinuz" bs=1M iflag=skip_bytes,count_bytes skip="$begin" count="$((length - 4))" status=none |
        xz -dc > "$vmlinux.tmp"
    mv "$vmlinux.tmp" "$vmlinux"
}

promtool=$LAB_CACHE/promtool
have_promtool() { [ -x "$promtool" ] || command -v promtool > /dev/null; }

missing=()
for p in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || missing+=("$p")
done
have=$(cat "$LAB_CACHE/version" 2>/dev/null || true)
built=$(cat "$LAB_CACHE/built-$have" 2>/dev/null || true)
if [ ${#missing[@]} = 0 ] && [ -n "$have" ] && [ "$built" = "$built_revision" ] && have_promtool && [ -z "${LAB_REFRESH:-}" ]; then
    [ -e "$LAB_CACHE/vmlinux-$have" ] || unpack_kernel "$have"
    echo "lab: kernel $have and every package are in place"
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "lab: install.sh needs root (missing packages: ${missing[*]:-none}; kernel: ${have:-none})" >&2
    exit 1
fi

mkdir -p "$LAB_CACHE"
exec 9> "$LAB_CACHE/lock" # a second run at the same time waits, and then finds the work done
flock 9
apt-get update -qq
[ ${#missing[@]} = 0 ] || apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # apt downloads as a user of its own
cd "$work"

if ! have_promtool; then
    apt-get download -qq prometheus
    dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool > "$promtool.tmp"
    chmod 755 "$promtool.tmp"
    mv "$promtool.tmp" "$promtool"
fi

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

if [ "$(cat "$LAB_CACHE/built-$ver" 2>/dev/null || true)" != "$built_revision" ]; then
    apt-get install -y -qq --no-install-recommends "linux-headers-$ver" linux-source-6.1 > /dev/null
    siw=linux-source-6.1/drivers/infiniband/sw/siw gss=linux-source-6.1/net/sunrpc/auth_gss
    tar -xf /usr/src/linux-source-6.1.tar.xz "$siw" linux-source-6.1/net/sunrpc linux-source-6.1/fs/nfsd/nfssvc.c
    build() { # DIR OPTION...
        make -s -C "/usr/src/linux-headers-$ver" M="$work/$1" "${@:2}" modules > make.log 2>&1 ||
            { cat make.log >&2; exit 1; }
    }
    modules=$LAB_CACHE/root/lib/modules/$ver
    mkdir -p "$modules/updates" # modprobe prefers it to Debian's modules
    put() { # MODULE
        strip --strip-debug -o "$modules/updates/new" "$1"
        mv "$modules/updates/new" "$modules/updates/$(basename "$1")"
    }
    rm -f "$modules/extra/siw.ko"
    sed -i 's/skb_copy_bits(skb, srx->skb_offset, tbuf, avail);/skb_copy_bits(skb, srx->skb_offset, tbuf + srx->pad + MPA_CRC_SIZE - srx->fpdu_part_rem, avail);/' \
        "$siw/siw_qp_rx.c"
    sed -i '/^static void siw_cm_llp_state_change(struct sock \*sk)/,/^}/s/^\t\tif (cep->qp)$/\t\tif (cep->state == SIW_EPSTATE_LISTENING)\n\t\t\tbreak;\n&/' \
        "$siw/siw_cm.c"
    build "$siw" CONFIG_RDMA_SIW=m
    put "$siw/siw.ko"
    # svc_getnl skips a word permanently. A kernel needs no patch if its nfsd does not open a
    # stream again, or if its svcauth_gss_unwrap_priv does not use a stream.
    if grep -q svcxdr_init_decode linux-source-6.1/fs/nfsd/nfssvc.c; then
        sed -i '/^svcauth_gss_unwrap_priv(/,/^}/s/^\treturn 0;$/\tsvc_getnl(\&buf->head[0]);\n\tsvc_getnl(\&buf->head[0]);\n\treturn 0;/' \
            "$gss/svcauth_gss.c"
        build "$gss" CONFIG_SUNRPC_GSS=m CONFIG_RPCSEC_GSS_KRB5=m
        put "$gss/auth_rpcgss.ko"
    fi
    depmod -b "$LAB_CACHE/root" "$ver"
    echo "$built_revision" > "$LAB_CACHE/built-$ver"
fi
unpack_kernel "$ver"
echo "$ver" > "$LAB_CACHE/version" # last, so that an interrupted run starts over
echo "lab: kernel $ver prepared in $LAB_CACHE"
