#!/bin/bash
# test-deb.sh PACKAGES installs a .deb, upgrades it under load, removes and purges it: test-deb-inside.sh, in a
# container. PACKAGES/0.1.0 and PACKAGES/0.1.1 are directories of packages.sh. The lab's guest (deploy/lab) runs in the
# container, too: a kernel's NFS client and server, with the bridge between them.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deploy/lab/mkinitrd.sh "$work/guest.cpio"
deploy/package/in-container.sh deploy/package/test-deb-inside.sh "$1"/0.1.[01]/rdmabridge_*_"$(dpkg --print-architecture)".deb \
    deploy/lab/boot.sh "$work/guest.cpio"
