#!/bin/bash
# install.sh [smoke] installs what the lab needs, as root on Debian 12. With the argument smoke it installs only what
# TestLabSmoke needs: fewer packages, and neither promtool nor what is for TLS.
#
#   packages   QEMU, the NFS and RDMA tools, rdma-core's headers, Kerberos, ACL tools, fio, libnfs-utils,
#              tshark, nfs-ganesha, HAProxy, keepalived, curl, and Chromium with a font for the tests of the status page.
#   promtool   Prometheus' own tool, taken out of Debian's package, which would start a server at port 9090.
#   kernel     Debian's own, unpacked under $LAB_CACHE/root and never installed. The file
#              vmlinux-VERSION has it as ELF, which boots without the 5 s of decompression
#              that an emulated CPU needs for Debian's vmlinuz.
#   siw.ko     Built from Debian's source package, because Debian ships only rxe. This script
#              patches four lines. First, siw fails an FPDU whose CRC arrives in two TCP
#              segments, because it stores the second half over the first. On a wire this is
#              rare, but QEMU's user network cuts the stream anew and makes it common, and
#              the knfsd threads that wait for such a Read never return. Second, a connection
#              that is closed before siw has accepted it takes the listener with it, because
#              a socket that is not yet accepted still points at the listener. Third and fourth,
#              when siw notices the end of a connection as it sends, the Sends that wait behind that one are never
#              completed. The knfsd threads that wait for them never return, and knfsd cannot be stopped.
#   auth_rpcgss.ko  Built and patched too. In late 6.1 the server skips the length and the
#              sequence number of a krb5p Call in a stream, and nfsd then opens the stream
#              again, so that it reads them as the arguments: every krb5p Call gets
#              GARBAGE_ARGS.
#   tls        Everything under $LAB_CACHE/tls is for guests with RPC-with-TLS, which Linux has since 6.5:
#              the kernel and siw.ko of Debian 12's backports, laid out like those above, and tlshd of the next
#              Debian release, in root/usr/sbin, which runs with the libraries of Debian 12. apt downloads
#              them with sources of its own, and this host's sources stay as they are.
#
# Every download is a Debian package. A second run uses no network and ends at once;
# LAB_REFRESH=1 fetches the newest kernel of this Debian release.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
LAB_CACHE=${LAB_CACHE:-/var/cache/rdmabridge-lab}
built_revision=5 # increase this whenever the build of modules below changes
case ${1:-} in
'') all=1 ;;
smoke) all='' ;;
*)
    echo "usage: install.sh [smoke]" >&2
    exit 2
    ;;
esac

packages=(
    qemu-system-x86 busybox-static kmod cpio zstd xz-utils make gcc libc6-dev bc libelf-dev diffutils
    iproute2 nfs-kernel-server nfs-common rpcbind ibverbs-providers libibverbs-dev librdmacm-dev
)
[ -z "$all" ] || packages+=(
    rdma-core ibverbs-utils rdmacm-utils
    krb5-kdc krb5-admin-server krb5-user libtirpc-dev libkrb5-dev acl attr nfs4-acl-tools xfsprogs dmsetup
    libgnutls30 libkeyutils1 libglib2.0-0 libnl-genl-3-200
    fio libnfs-utils chromium fonts-dejavu-core tcpdump tshark nfs-ganesha nfs-ganesha-vfs nfs-ganesha-proxy-v4
    groff-base haproxy systemd systemd-container
    keepalived curl
)

# unpack_kernel DIR VERSION takes the ELF image out of DIR/root/boot's bzImage: Documentation/arch/x86/boot.rst in
# Linux describes the fields setup_sects, payload_offset and payload_length.
unpack_kernel() {
    local vmlinuz=$1/root/boot/vmlinuz-$2 vmlinux=$1/vmlinux-$2
    field() { od -An -t "u$2" -j "$1" -N "$2" "$vmlinuz" | tr -d ' '; }
    local begin=$((($(field 0x1f1 1) + 1) * 512 + $(field 0x248 4))) length unpack=(xz -dc)
    length=$(field 0x24c 4)
    [ "$(field "$begin" 4)" != $((0xfd2fb528)) ] || unpack=(zstd -dcq)
    # The last four octets are the length of the decompressed image.
    dd if="$vmlinuz" bs=1M iflag=skip_bytes,count_bytes skip="$begin" count="$((length - 4))" status=none |
        "${unpack[@]}" > "$vmlinux.tmp"
    mv "$vmlinux.tmp" "$vmlinux"
}

# build HEADERS DIR OPTION... builds modules of the source directory DIR.
build() {
    make -s -j"$(nproc)" -C "$1" M="$PWD/$2" "${@:3}" modules > make.log 2>&1 || { cat make.log >&2; exit 1; }
}

# put MODULE DIR gives a kernel a module, which modprobe prefers to Debian's if DIR is called updates.
put() {
    mkdir -p "$2"
    strip --strip-debug -o "$2/new" "$1"
    mv "$2/new" "$2/$(basename "$1")"
}

patch_siw() { # DIR
    sed -i 's/skb_copy_bits(skb, srx->skb_offset, tbuf, avail);/skb_copy_bits(skb, srx->skb_offset, tbuf + srx->pad + MPA_CRC_SIZE - srx->fpdu_part_rem, avail);/' \
        "$1/siw_qp_rx.c"
    sed -i '/^static void siw_cm_llp_state_change(struct sock \*sk)/,/^}/s/^\t\tif (cep->qp)$/\t\tif (cep->state == SIW_EPSTATE_LISTENING)\n\t\t\tbreak;\n&/' \
        "$1/siw_cm.c"
    sed -i '/^int siw_qp_sq_process(/,/^}/s/siw_qp_cm_drop(qp, 0);/siw_qp_cm_drop(qp, 1);/' "$1/siw_qp_tx.c"
    sed -i '/^static int siw_qp_nextstate_from_rts(/,/^}/s/if (tx_wqe(qp)->wr_status == SIW_WR_IDLE) {/if (tx_wqe(qp)->wr_status == SIW_WR_IDLE \&\& !qp->sendq[qp->sq_get % qp->attrs.sq_size].flags) {/' \
        "$1/siw_qp.c"
}

promtool=$LAB_CACHE/promtool
have_promtool() { [ -z "$all" ] || [ -x "$promtool" ] || command -v promtool > /dev/null; }

missing=()
for p in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${Status}' "$p" 2>/dev/null)" = "install ok installed" ] || missing+=("$p")
done
have=$(cat "$LAB_CACHE/version" 2>/dev/null || true)
built=$(cat "$LAB_CACHE/built-$have" 2>/dev/null || true)
tls=$LAB_CACHE/tls
have_tls=$(cat "$tls/version" 2>/dev/null || true)
[ "$(cat "$tls/built" 2>/dev/null || true)" = "$built_revision" ] || have_tls=
needs_tls() { [ -n "$all" ] && { [ -z "$have_tls" ] || [ -n "${LAB_REFRESH:-}" ]; }; }
if [ ${#missing[@]} = 0 ] && [ -n "$have" ] && ! needs_tls && [ "$built" = "$built_revision" ] && have_promtool && [ -z "${LAB_REFRESH:-}" ]; then
    [ -e "$LAB_CACHE/vmlinux-$have" ] || unpack_kernel "$LAB_CACHE" "$have"
    [ -z "$have_tls" ] || [ -e "$tls/vmlinux-$have_tls" ] || unpack_kernel "$tls" "$have_tls"
    echo "lab: every package is in place, and kernel ${have}${have_tls:+ and $have_tls}"
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
    headers=/usr/src/linux-headers-$ver updates=$LAB_CACHE/root/lib/modules/$ver/updates
    rm -f "$LAB_CACHE/root/lib/modules/$ver/extra/siw.ko"
    patch_siw "$siw"
    build "$headers" "$siw" CONFIG_RDMA_SIW=m
    put "$siw/siw.ko" "$updates"
    # svc_getnl skips a word permanently. A kernel needs no patch if its nfsd does not open a
    # stream again, or if its svcauth_gss_unwrap_priv does not use a stream.
    if grep -q svcxdr_init_decode linux-source-6.1/fs/nfsd/nfssvc.c; then
        sed -i '/^svcauth_gss_unwrap_priv(/,/^}/s/^\treturn 0;$/\tsvc_getnl(\&buf->head[0]);\n\tsvc_getnl(\&buf->head[0]);\n\treturn 0;/' \
            "$gss/svcauth_gss.c"
        build "$headers" "$gss" CONFIG_SUNRPC_GSS=m CONFIG_RPCSEC_GSS_KRB5=m
        put "$gss/auth_rpcgss.ko" "$updates"
    fi
    depmod -b "$LAB_CACHE/root" "$ver"
    echo "$built_revision" > "$LAB_CACHE/built-$ver"
fi
unpack_kernel "$LAB_CACHE" "$ver"
echo "$ver" > "$LAB_CACHE/version" # last, so that an interrupted run starts over
echo "lab: kernel $ver prepared in $LAB_CACHE"

# tls_apt runs a command of apt that sees only the backports and the next release of Debian, wherever
# this host has its own release from.
tls_apt() { "$1" -o Dir::Etc::SourceList="$work/tls.list" -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "${@:2}"; }
if needs_tls; then
    from=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' 'Codename: bookworm' | sed 1q)
    for suite in bookworm-backports trixie; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $suite main"
    done > tls.list
    mkdir -p lists/partial
    tls_apt apt-get update -qq
    image=$(tls_apt apt-cache depends -t bookworm-backports linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
    ver=${image#linux-image-}
    source=linux-source-$(echo "$ver" | cut -d. -f1,2)
    common=${ver%-amd64}
    if [ "$have_tls" != "$ver" ]; then
        tls_apt apt-get download -qq -t bookworm-backports "$image" "$source" ktls-utils \
            "linux-headers-$ver" "linux-headers-$common-common" "linux-kbuild-$common"
        rm -rf "$tls"
        mkdir -p "$tls/root"
        dpkg -x "$image"_*.deb "$tls/root"
        dpkg -x ktls-utils_*.deb "$tls/root"
        for p in "$source" "linux-headers-$ver" "linux-headers-$common-common" "linux-kbuild-$common"; do
            dpkg -x "$p"_*.deb tls
        done
        sed -i "s| /usr/src/| $work/tls/usr/src/|" "tls/usr/src/linux-headers-$ver/Makefile"
        siw=$source/drivers/infiniband/sw/siw
        tar -xf "tls/usr/src/$source.tar.xz" "$siw"
        patch_siw "$siw"
        # Without BTF, for which make would need pahole.
        build "tls/usr/src/linux-headers-$ver" "$siw" CONFIG_RDMA_SIW=m CONFIG_DEBUG_INFO_BTF_MODULES=
        put "$siw/siw.ko" "$tls/root/lib/modules/$ver/updates"
        depmod -b "$tls/root" "$ver"
        unpack_kernel "$tls" "$ver"
        echo "$built_revision" > "$tls/built"
        echo "$ver" > "$tls/version"
    fi
    echo "lab: kernel $ver prepared in $tls"
fi
