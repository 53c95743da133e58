#!/bin/bash
# test-ibverbs.sh PACKAGES installs the .deb packages rdmabridge and rdmabridge-ibverbs, upgrades both, and purges them:
# test-ibverbs-inside.sh, in a container. PACKAGES/0.1.0 and PACKAGES/0.1.1 are directories of packages.sh. There is no
# RDMA device, so the units carry NFS to the demo over iWARP in software.
set -euo pipefail
cd "$(dirname "$0")/../.."
deploy/package/in-container.sh deploy/package/test-ibverbs-inside.sh "$1"/0.1.[01]/rdmabridge{,-ibverbs}_*_"$(dpkg --print-architecture)".deb \
    configs/examples/{roce,infiniband}.yaml
