#!/bin/bash
# boot.sh INITRD [OPTION...] boots the lab guest in the foreground. Kill it by its pid.
#
#   --tls 1            boots the kernel with RPC-with-TLS; INITRD is for it, too
#   --share DIR        makes DIR the guest's /host, from which guest/init takes jobs
#   --fwd HOST:GUEST   forwards port HOST of the host's 127.0.0.1 to port GUEST of the guest. HOST may have
#                      another address of the host before it: ADDRESS:PORT
#   --append "WORDS"   adds to the kernel command line; guest/init lists the lab.* words
#   --mem MB  --smp N  set memory and CPUs; the defaults are 2048 and 1
#   --log FILE         writes the guest's console to FILE; the default is this terminal
#   --tap NAME         adds a network card that is on the host's tap device NAME: see lab.tap of guest/init
#   --pcap FILE        captures every frame of the guest's network card
#   --disk FILE        adds a raw disk, /dev/vda. FILE has everything that the guest wrote even
#                      if this process is killed, but not if the host is
#
# The guest is 10.0.2.15 and sees the host's 127.0.0.1 as 10.0.2.2. QEMU forwards connections to the host from ports
# of its own choice. A client that must keep its port over a reconnect, as a server on TCP expects, needs --tap. QEMU uses KVM if the
# processor has it, and software emulation otherwise. Its cost under emulation decides the rest:
# one CPU, because two synchronize at every barrier and wait for each other's locks; a CPU model
# with the instruction CRC32 for iWARP, but without AVX, SMAP and page tables of five levels; a
# kernel that is not compressed, and no clearing of memory for security's sake.
set -euo pipefail
LAB_CACHE=${LAB_CACHE:-/var/cache/rdmabridge-lab}
initrd=$1
shift
fwd='' append='' mem=2048 smp=1
serial=(-serial mon:stdio)
extra=()
while [ $# -gt 0 ]; do
    case $1 in
    --tls) LAB_CACHE+=/tls ;;
    --share) extra+=(-virtfs "local,path=$2,mount_tag=host,security_model=none,id=host") ;;
    --fwd) # [ADDRESS:]PORT:PORT
        host=${2%:*}
        [[ $host = *:* ]] || host=127.0.0.1:$host
        fwd+=",hostfwd=tcp:$host-10.0.2.15:${2##*:}"
        ;;
    --append) append=$2 ;;
    --mem) mem=$2 ;;
    --smp) smp=$2 ;;
    --log) serial=(-monitor none -serial "file:$2") ;;
    --tap) extra+=(-netdev "tap,id=n1,ifname=$2,script=no,downscript=no" -device virtio-net-pci,netdev=n1) ;;
    --pcap) extra+=(-object "filter-dump,id=pcap,netdev=n0,file=$2") ;;
    --disk) extra+=(-drive "file=$2,format=raw,if=virtio,cache=unsafe") ;;
    *)
        echo "boot.sh: unknown option $1" >&2
        exit 2
        ;;
    esac
    shift 2
done
ver=$(cat "$LAB_CACHE/version")
accel=tcg cpu=Nehalem
fast='init_on_alloc=0 hardened_usercopy=off audit=0 nowatchdog no_timer_check transparent_hugepage=never'
# On a busy host a kernel that measures the TSC's rate may be wrong by far. Under emulation the
# guest's TSC is the host's, whose rate in MHz is half of bogomips.
khz=$(awk '$1 == "bogomips" { printf "%.0f", $3 * 500; exit }' /proc/cpuinfo)
[ -z "$khz" ] || fast+=" tsc_early_khz=$khz tsc=reliable"
if [ -w /dev/kvm ] && grep -qE '^flags.* (vmx|svm) ' /proc/cpuinfo; then accel=kvm cpu=max fast=''; fi
exec qemu-system-x86_64 -accel "$accel" -cpu "$cpu" -m "$mem" -smp "$smp" \
    -display none -nodefaults -no-reboot "${serial[@]}" \
    -kernel "$LAB_CACHE/vmlinux-$ver" -initrd "$initrd" \
    -append "console=ttyS0 panic=-1 quiet mitigations=off $fast $append" \
    -netdev user,id=n0"$fwd" -device virtio-net-pci,netdev=n0 -device virtio-rng-pci "${extra[@]}"
