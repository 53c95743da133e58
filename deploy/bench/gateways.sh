#!/bin/bash
# gateways.sh [ROUNDS] boots the lab's guest and compares gateways in front of its knfsd: guest/gateways.sh says which.
# It writes a table for docs/bench-gateways.md to out/gateways.md, and the figures to out/gateways.txt. It needs what
# deploy/lab/install.sh installs, and bin/rdmabridge. GUEST_ENV in the environment sets variables of the guest's
# script, such as GUEST_ENV='VERSIONS=3 TARGETS="rdmabridge haproxy"'. It ends the guest that it has started.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/share" out
deploy/lab/mkinitrd.sh "$dir/guest.cpio" bin/rdmabridge /usr/sbin/haproxy \
    /usr/bin/ganesha.nfsd /usr/lib/x86_64-linux-gnu/ganesha/libfsalproxy_v4.so
deploy/lab/boot.sh "$dir/guest.cpio" --share "$dir/share" --log "$dir/console" --mem 3072 \
    --append "lab.rdma=siw lab.server=1 lab.lease=30" < /dev/null &
guest=$!
trap 'kill $guest 2> /dev/null || true; wait $guest 2> /dev/null || true; rm -rf "$dir"' EXIT
echo "${GUEST_ENV:-} exec /lab/gateways.sh $rounds" > "$dir/share/g.new"
mv "$dir/share/g.new" "$dir/share/g.job"
for _ in $(seq 3600); do
    [ ! -e "$dir/share/g.rc" ] || break
    kill -0 $guest 2> /dev/null || { cat "$dir/console" >&2; exit 1; }
    sleep 1
done
cp "$dir/share/g.out" out/gateways.txt
[ "$(cat "$dir/share/g.rc" 2> /dev/null)" = 0 ] || { tail -n 30 out/gateways.txt "$dir/console" >&2; exit 1; }

# Ratios to haproxy of the same round, and the median over the rounds. Of fio the larger figure is better, of meta and
# untar, which are times, the smaller one: their ratios are turned round.
awk -v targets="direct-rdma direct-tcp rdmabridge ganesha reexport" '
    NF == 5 { key = $1 " | " $2; if (!(key in seen)) { seen[key] = 1; order[++keys] = key } value[key, $3, $4] = $5; if ($4 > rounds) rounds = $4 }
    function median(list, n,    i, j, x) {
        for (i = 2; i <= n; i++) { x = list[i]; for (j = i - 1; j > 0 && list[j] > x; j--) list[j + 1] = list[j]; list[j + 1] = x }
        return list[int((n + 1) / 2)]
    }
    END {
        n = split(targets, t, " ")
        printf "| NFS | work | haproxy |"
        for (i = 1; i <= n; i++) printf " %s |", t[i]
        printf "\n|---|---|---|"
        for (i = 1; i <= n; i++) printf "---|"
        print ""
        for (k = 1; k <= keys; k++) {
            key = order[k]
            times = key ~ /meta|untar/
            for (r = 1; r <= rounds; r++) base[r] = value[key, "haproxy", r]
            printf "| %s | %s %s |", key, median(base, rounds), times ? "s" : "KiB/s"
            for (i = 1; i <= n; i++) {
                m = 0
                for (r = 1; r <= rounds; r++) {
                    a = value[key, t[i], r]; b = value[key, "haproxy", r]
                    if (a > 0 && b > 0) ratio[++m] = times ? b / a : a / b
                }
                if (m == 0) { printf " - |"; continue }
                x = median(ratio, m)
                printf " %.2f [%.2f-%.2f] |", x, ratio[1], ratio[m]
            }
            print ""
        }
    }' out/gateways.txt | tee out/gateways.md
