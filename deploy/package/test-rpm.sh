#!/bin/bash
# test-rpm.sh PACKAGES installs an .rpm, upgrades it under load, and removes it: test-rpm-inside.sh, in a container.
# PACKAGES/0.1.0 and PACKAGES/0.1.1 are directories of packages.sh. The container is a Debian with rpm, whose database
# is empty.
set -euo pipefail
cd "$(dirname "$0")/../.."
deploy/package/in-container.sh deploy/package/test-rpm-inside.sh "$1"/0.1.[01]/rdmabridge-[0-9]*."$(uname -m)".rpm
