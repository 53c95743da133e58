//go:build lab

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The tests of provider ibverbs run in the guest, which has the devices: rxe, which is RoCE v2, and
// siw, which is iWARP. The bridge and both its peers are in one guest:
//
//	the guest's NFS client -- TCP  --> rdmabridge -- verbs --> the guest's knfsd
//	the guest's NFS client -- RDMA --> rdmabridge -- TCP   --> the guest's knfsd
func TestLabVerbsRXE(t *testing.T) { testVerbs(t, "rxe") }

func TestLabVerbsSIW(t *testing.T) { testVerbs(t, "siw") }

func testVerbs(t *testing.T, driver string) {
	needLab(t)
	g := newGuest(t, packGuest(t), "--mem", "3072", "--append", "lab.server=1 lab.rdma="+driver)
	clients := g.forward(t, 12050)
	relay := g.forward(t, 20102)
	g.launch(t)
	g.put(t, built(t, buildVerbsTests), "ibverbs.test")
	g.put(t, built(t, buildVerbsBridge), "rdmabridge")
	g.ready(t)

	t.Run("fabric", func(t *testing.T) { testVerbsFabric(t, g, driver) })
	t.Run("missing", func(t *testing.T) { testVerbsMissing(t, g) })
	t.Run("select", func(t *testing.T) { testVerbsSelect(t, g, driver) })
	t.Run("memlock", func(t *testing.T) { testVerbsMemlock(t, g) })
	t.Run("requester", func(t *testing.T) { testVerbsRequester(t, g, driver, farEnd{nfs: clients, mount: clients}) })
	if driver == "rxe" {
		t.Run("windows", func(t *testing.T) { testVerbsWindows(t, g) })
	}
	t.Run("responder", func(t *testing.T) { testVerbsResponder(t, g, driver) })
	if driver == "siw" {
		t.Run("interop", func(t *testing.T) { testVerbsInterop(t, g, farEnd{nfs: clients, mount: clients}, relay) })
	}
}

// testVerbsFabric runs the suite that every provider passes; on rxe with memory windows too, though
// without the tests that have nothing to do with registered memory.
func testVerbsFabric(t *testing.T, g *guest, driver string) {
	const windowTests = "WriteThenSend|Read|Bounds|Rights|Handles|ForeignHandle|Invalidate|RemoteInvalidate|RemoteInvalidateDead|" +
		"BigTransfers|Mixed|FlushOnClose|OrderlyClose|CloseUnderLoad"
	out := g.job(t, 5*time.Minute, "export RDMABRIDGE_VERBS=10.0.2.15 RDMABRIDGE_VERBS_DRIVER="+driver+`
/host/ibverbs.test -test.v -test.timeout 280s -test.skip '^TestFabricWindows$' &&
    /host/ibverbs.test -test.v -test.timeout 280s -test.run '^TestFabricWindows$/^(`+windowTests+`)$'`)
	wantWindows := 0 // siw has none, and a test that says so
	if driver == "rxe" {
		wantWindows = strings.Count(windowTests, "|") + 1
	}
	n, windows := strings.Count(out, "\n    --- PASS: TestFabric/"), strings.Count(out, "\n    --- PASS: TestFabricWindows/")
	// Tests of the stand-in for rdma-core are skipped.
	if n < 40 || windows != wantWindows || !strings.Contains(out, "--- PASS: TestFabricWindows") || strings.Contains(out, "--- SKIP: TestFabric") {
		t.Errorf("%d tests of the suite passed, and %d with windows, or some were skipped:\n%s", n, windows, tail([]byte(out), 60))
	}
}

// Configurations of the bridge in the guest.
const (
	verbsRequester = `
listeners:
  - {name: nfs, address: "127.0.0.1:12049", transport: tcp, upstream: storage, routes: [{program: mount, upstream: mountd}], limits: {connections: 64}}
  - {name: nfs-2, address: "10.0.2.15:12050", transport: tcp, upstream: storage, routes: [{program: mount, upstream: mountd}], limits: {connections: 64}}
upstreams:
  - {name: storage, transport: rdma, provider: ibverbs, endpoints: ["10.0.2.15:20049"], pool: {connections: 4, credits: 32}}
  - {name: mountd, transport: tcp, endpoints: ["127.0.0.1:20048"]}
memory: {budget: 256MiB}
admin: {address: "127.0.0.1:9090"}
log: {level: info, format: json}
`
	verbsResponder = `
listeners:
  - {name: nfs, address: "10.0.2.15:20100", transport: rdma, provider: ibverbs, upstream: storage, limits: {connections: 64}}
  - {name: nfs-2, address: "0.0.0.0:20101", transport: rdma, provider: ibverbs, upstream: storage, limits: {connections: 64}}
upstreams:
  - {name: storage, transport: tcp, endpoints: ["127.0.0.1:2049"], pool: {connections: 4}}
memory: {budget: 256MiB}
admin: {address: "127.0.0.1:9090"}
log: {level: info, format: json}
`
)

// withIBVerbs adds settings of ibverbs to every listener and upstream that has this provider.
func withIBVerbs(config, settings string) string {
	return strings.ReplaceAll(config, "provider: ibverbs", "provider: ibverbs, ibverbs: {"+settings+"}")
}

// withDriver returns a configuration with the settings that select the guest's device.
func withDriver(config, driver string) string {
	if driver == "rxe" {
		return withIBVerbs(config, "device: rxe0, port: 1, gid: 10.0.2.15")
	}
	return withIBVerbs(config, "device: siw0, port: 1, traffic_class: 104")
}

// testVerbsSelect checks what check says of devices, ports and GIDs that the guest does not have, or that
// are not where a listener is. The tests after it use those that it has.
func testVerbsSelect(t *testing.T, g *guest, driver string) {
	file := func(name, settings string) {
		if err := os.WriteFile(filepath.Join(g.dir, name+".yaml"), []byte(withIBVerbs(verbsResponder, settings)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	device := driver + "0"
	wants := []string{
		`device.yaml:3: listeners\[0\].ibverbs: there is no RDMA device none0; this host has ` + device,
		`port.yaml:3: listeners\[0\].ibverbs: there is no port 2; device ` + device + ` has port 1`,
		`gid.yaml:3: listeners\[0\].ibverbs: no port has the GID fe80::dead; device ` + device + ` has `,
		`here.yaml: good`,
	}
	file("device", "device: none0")
	file("port", "port: 2, device: "+device)
	file("gid", "gid: 'fe80::dead', device: "+device)
	file("here", "port: 1, device: "+device)
	if driver == "rxe" { // iWARP has one GID, and traffic classes
		file("other", "gid: GID")
		file("class", "traffic_class: 104")
		wants = append(wants,
			`other.yaml:3: listeners\[0\].ibverbs: the address is at device rxe0, port 1, GID ::ffff:10.0.2.15, and GID fe80:[0-9a-f:]* is configured`,
			`class.yaml:3: listeners\[0\].ibverbs: a listener on InfiniBand or RoCE, as device rxe0 is, has no traffic class of its own`)
	}
	out := g.job(t, time.Minute, `
sed "s/gid: GID/gid: '$(cat /sys/class/infiniband/`+device+`/ports/1/gids/0)'/" /host/other.yaml > /tmp/other.yaml
for name in /host/device /host/port /host/gid /host/here /tmp/other /host/class; do
    [ ! -s $name.yaml ] || /host/rdmabridge check -c $name.yaml 2>&1
done; true`)
	for _, want := range wants {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
}

// testVerbsMissing checks what the program says where a part of rdma-core is missing, and that it
// needs none for iwarp.
func testVerbsMissing(t *testing.T, g *guest) {
	for name, text := range map[string]string{"ibverbs": verbsRequester, "iwarp": strings.ReplaceAll(verbsRequester, "ibverbs", "iwarp")} {
		if err := os.WriteFile(filepath.Join(g.dir, name+".yaml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out := g.job(t, time.Minute, `
for lib in libibverbs librdmacm; do
    paths=$(find /lib /usr/lib -name $lib.so.1)
    for p in $paths; do mv $p $p.hidden; done
    /host/rdmabridge check -c /host/ibverbs.yaml && echo "accepted without $lib"
    /host/rdmabridge check -c /host/iwarp.yaml || echo "iwarp refused without $lib"
    for p in $paths; do mv $p.hidden $p; done
done
/host/rdmabridge check -c /host/ibverbs.yaml`)
	for _, want := range []string{
		`ibverbs.yaml:6: upstreams\[0\].provider: .*libibverbs.so.1: cannot open shared object file.*install rdma-core`,
		`ibverbs.yaml:6: upstreams\[0\].provider: .*librdmacm.so.1: cannot open shared object file.*install rdma-core`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "accepted without") || strings.Contains(out, "refused without") || strings.Count(out, "good:") != 3 {
		t.Errorf("check said\n%s", out)
	}
}

// A guestBridge is a bridge that runs in the guest.
type guestBridge struct {
	g   *guest
	job *guestJob
}

// startInGuest starts a bridge in the guest as beginInGuest does, with the limit of locked memory that
// docs/ibverbs.md says, and waits until it is ready.
func startInGuest(t *testing.T, g *guest, config string) *guestBridge {
	t.Helper()
	b := beginInGuest(t, g, config, lockedMemory(config))
	b.ready(t)
	return b
}

// lockedMemory is the limit of locked memory that docs/ibverbs.md says, in KiB.
func lockedMemory(config string) int {
	return (strings.Count(config, "provider: ibverbs") + 1) * 256 << 10
}

// beginInGuest starts a bridge as an ordinary user, who has a limit of locked memory, in KiB, to which
// the bridge must raise its own. The log of the bridge is the output of its job.
func beginInGuest(t *testing.T, g *guest, config string, memlock int) *guestBridge {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, "bridge.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return &guestBridge{g, g.begin(t, fmt.Sprintf(`ulimit -S -l 64 && ulimit -H -l %d && ulimit -n 65536 || exit 1
echo $$ > /tmp/bridge.pid
exec su -s /bin/sh nobody -c 'exec /host/rdmabridge serve -c /host/bridge.yaml'`, memlock))}
}

// ready waits until the bridge is ready.
func (b *guestBridge) ready(t *testing.T) {
	t.Helper()
	b.g.job(t, time.Minute, `until wget -q -O /dev/null http://127.0.0.1:9090/readyz; do
    sleep 0.2
    [ -e /proc/$(cat /tmp/bridge.pid) ] || exit 1
done`)
}

// sum returns the sum of the series whose names begin with rdmabridge_ and prefix.
func (b *guestBridge) sum(t *testing.T, prefix string) (sum float64) {
	t.Helper()
	for line := range strings.Lines(b.g.job(t, time.Minute, "wget -q -O - http://127.0.0.1:9090/metrics")) {
		if rest, ok := strings.CutPrefix(line, "rdmabridge_"+prefix); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " ")+1:]), 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			sum += v
		}
	}
	return sum
}

// stop drains the bridge, and fails if it has complained of something that does not match allowed.
func (b *guestBridge) stop(t *testing.T, allowed string) {
	t.Helper()
	for _, line := range b.complaints(t) {
		if allowed == "" || !regexp.MustCompile(allowed).MatchString(line) {
			t.Errorf("the bridge complained: %s", line)
		}
	}
}

// complaints drains the bridge and returns the lines of its log that are not only information.
func (b *guestBridge) complaints(t *testing.T) (lines []string) {
	t.Helper()
	b.g.job(t, time.Minute, "kill $(cat /tmp/bridge.pid)")
	for line := range strings.Lines(b.job.wait(t, 20*time.Minute)) { // since its start
		if !strings.Contains(line, `"level":"info"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// verbsFiles is a selection of the file tests.
const verbsFiles = "NAMES=500 SIZES='0 1 3 4095 4096 65537 1048577' /lab/files.sh"

// fewFiles has fewer names.
const fewFiles = "NAMES=50 SIZES='0 1 3 4095 4096 65537 1048577' /lab/files.sh"

// upstreamChunks count data that travelled apart from their message, to servers and from them.
var upstreamChunks = []string{`upstream_rdma_calls_total{call="read_chunk"`, `upstream_rdma_calls_total{call="inline",reply="write_chunk"`}

// listenerChunks are the same for clients of a listener.
func listenerChunks(name string) []string {
	return []string{`listener_rdma_calls_total{call="pulled"`, fmt.Sprintf(`listener_rdma_replies_total{listener=%q,reply="write_chunk"`, name)}
}

// wantCounted fails unless the bridge that sum asks has counted something in each of these series.
func wantCounted(t *testing.T, sum func(*testing.T, string) float64, series ...string) {
	t.Helper()
	for _, s := range series {
		if sum(t, s) == 0 {
			t.Errorf("%s is 0", s)
		}
	}
}

// testVerbsMemlock: with a limit of locked memory that is too low by a page the bridge says how much it
// needs, and nothing else.
func testVerbsMemlock(t *testing.T, g *guest) {
	b := beginInGuest(t, g, verbsRequester, lockedMemory(verbsRequester)-4)
	waitFor(t, time.Minute, "a complaint", func() bool { return b.job.said(`"level":"warn"`) })
	need := lockedMemory(verbsRequester) << 10
	want := fmt.Sprintf(`limit of locked memory is %d octets, and memory.budget needs %d, .*LimitMEMLOCK=%[2]d`, need-4096, need)
	for _, line := range b.complaints(t) {
		t.Log(line)
		if !regexp.MustCompile(want).MatchString(line) {
			t.Errorf("want only lines with %q", want)
		}
	}
}

// testVerbsRequester: clients on TCP and server on RDMA. The address away is forwarded to the bridge,
// for clients that cannot reach the guest itself.
func testVerbsRequester(t *testing.T, g *guest, driver string, away farEnd) {
	b := startInGuest(t, g, withDriver(verbsRequester, driver))
	far := farEnd{nfs: 12049, mount: 12049, host: "127.0.0.1"}
	for _, v := range some([]string{"3", "4.1"}, map[string]string{"siw": "3", "rxe": "4.1"}[driver]) {
		t.Run("files/"+v, func(t *testing.T) { g.job(t, 3*time.Minute, far.script(verbsFiles, v)) })
	}
	for _, v := range []string{"3", "4.2"} {
		t.Run("read/"+v, func(t *testing.T) {
			before := b.sum(t, `upstream_rdma_calls_total{call="inline",reply="write_chunk"`)
			g.job(t, 2*time.Minute, far.script("/lab/read.sh", v))
			if n := b.sum(t, `upstream_rdma_calls_total{call="inline",reply="write_chunk"`) - before; n < 32 {
				t.Errorf("%.0f Replies had a Write chunk, want 32 or more", n)
			}
		})
	}
	if n := b.sum(t, `upstream_rdma_calls_total{call="read_chunk"`); n == 0 {
		t.Error("no Call had a Read chunk")
	}
	if driver == "rxe" || labFull() {
		testVerbsFeatures(t, b, far, away)
	}
	t.Run("restart", func(t *testing.T) { testVerbsRestart(t, b) })
	t.Run("link", func(t *testing.T) { testVerbsLink(t, b, driver) })
	t.Run("drain", func(t *testing.T) {
		b.stop(t, `"message":"(no connection to upstream|call cannot be answered; client connection closed|connection ended|event of an RDMA device|endpoint ejected|upstream answers nothing [^"]*)"`)
	})
}

// testVerbsWindows: as testVerbsRequester, with a memory window for each chunk.
func testVerbsWindows(t *testing.T, g *guest) {
	b := startInGuest(t, g, strings.Replace(verbsRequester, "provider: ibverbs,", "provider: ibverbs, ibverbs: {exposure: windows},", 1))
	far := farEnd{nfs: 12049, mount: 12049, host: "127.0.0.1"}
	g.job(t, 3*time.Minute, far.script(fewFiles, "3"))
	g.job(t, 2*time.Minute, far.script("/lab/read.sh", "4.2"))
	wantCounted(t, b.sum, upstreamChunks...)
	b.stop(t, `"message":"ibverbs.exposure is windows, [^"]*"`)
}

// testVerbsLink: the link goes down while two mounts read, one of NFSv3 and one of NFSv4.1, which has a
// connection of its own, and comes up again. The clients get every octet, late, and the bridge connects again.
func testVerbsLink(t *testing.T, b *guestBridge, driver string) {
	lost := b.sum(t, "upstream_disconnects_total")
	b.flap(t, "127.0.0.1:/export vers=3,proto=tcp,port=12049,mountport=12049,mountproto=tcp,nolock", "127.0.0.1:/ vers=4.1,proto=tcp,port=12049")
	if n := b.sum(t, "upstream_disconnects_total") - lost; n == 0 {
		t.Error("no connection was lost")
	}
	if driver == "siw" {
		return // it ends the connections before it reports the port, when nobody listens any more
	}
	for _, event := range []string{"port_down", "port_active"} {
		if b.sum(t, `listener_device_events_total{event="`+event+`"`)+b.sum(t, `upstream_device_events_total{event="`+event+`"`) == 0 {
			t.Errorf("no event %s was counted", event)
		}
	}
}

// flap has the link go down for a while, while mounts read a file, and checks what they read. A mount is
// what is mounted, and the options. flap returns a line for each that says how often its client connected.
func (b *guestBridge) flap(t *testing.T, mounts ...string) string {
	t.Helper()
	return b.g.job(t, 5*time.Minute, "mounts='"+strings.Join(mounts, "\n")+`'
set -e
dd if=/dev/urandom of=/export/link bs=1M count=4 2> /dev/null
round() { dd if=$1/link of=$1.read bs=256k iflag=direct 2> /dev/null && cmp $1.read /export/link; }
rounds() { until [ -e /tmp/link.up ]; do round $1 || return 1; done; round $1 && round $1; }
n=0
while read -r from options; do
    n=$((n + 1))
    mkdir -p /tmp/link.$n
    mount.nfs $from /tmp/link.$n -o $options,hard,timeo=100
done << EOF
$mounts
EOF
set +e
loads=
for i in $(seq $n); do
    rounds /tmp/link.$i & loads="$loads $!"
done
sleep 0.5
ip link set eth0 down
sleep 3
ip link set eth0 up
ip route add default via 10.0.2.2
touch /tmp/link.up
for load in $loads; do wait $load || exit 1; done
for i in $(seq $n); do
    awk -v at=/tmp/link.$i '/^device/ { on = $5 == at } on && $1 == "xprt:" { print at " connected " $5 " times" }' /proc/self/mountstats
done
until wget -q -O /dev/null http://127.0.0.1:9090/readyz; do sleep 0.2; done
for i in $(seq $n); do umount /tmp/link.$i || exit 1; done
rm /export/link /tmp/link.*.read /tmp/link.up`)
}

// testVerbsRestart: the server is stopped and started, and the bridge connects again.
func testVerbsRestart(t *testing.T, b *guestBridge) {
	g := b.g
	g.job(t, 2*time.Minute, `/lab/knfsd.sh stop
n=0; until ! wget -q -O /dev/null http://127.0.0.1:9090/readyz || [ $n = 300 ]; do sleep 0.1; n=$((n + 1)); done
/lab/knfsd.sh start
until wget -q -O /dev/null http://127.0.0.1:9090/readyz; do sleep 0.2; done`)
	g.job(t, 2*time.Minute, farEnd{nfs: 12049, mount: 12049, host: "127.0.0.1"}.script("/lab/read.sh", "3"))
}

// testVerbsResponder: clients on RDMA, server on TCP.
func testVerbsResponder(t *testing.T, g *guest, driver string) {
	b := startInGuest(t, g, withDriver(verbsResponder, driver))
	far := farEnd{nfs: 20100, mount: 20048, host: "10.0.2.15", env: "PROTO=rdma PORT2=20101"}
	for _, v := range some([]string{"3", "4.1"}, map[string]string{"siw": "4.1", "rxe": "3"}[driver]) {
		t.Run("files/"+v, func(t *testing.T) { g.job(t, 3*time.Minute, far.script(verbsFiles, v)) })
	}
	t.Run("read/4.2", func(t *testing.T) { g.job(t, 2*time.Minute, far.script("/lab/read.sh", "4.2")) })
	wantCounted(t, b.sum, listenerChunks("nfs")...)
	t.Run("recall", func(t *testing.T) {
		g.job(t, 3*time.Minute, far.script("IDLE=2 /lab/recall.sh", "4.1"))
		b.wantReverse(t, "listener")
	})
	allowed := ""
	if driver == "siw" { // with rxe the kernel's client may leave the device without a connection manager
		t.Run("link", func(t *testing.T) {
			out := b.flap(t, "10.0.2.15:/ vers=4.1,proto=rdma,port=20100")
			if !regexp.MustCompile(`connected ([2-9]|\d\d+) times`).MatchString(out) {
				t.Errorf("the client has not connected again: %s", out)
			}
		})
		allowed = `"message":"(connection ended|event of an RDMA device)"`
	}
	t.Run("drain", func(t *testing.T) { b.stop(t, allowed) })
}
