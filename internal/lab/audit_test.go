//go:build lab

package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// auditScript unpacks files and changes names, data and attributes, by two users, while guest/watch.c tells what happens in
// the server's file system. Each name is used once, and what is before its first dot is the directory that it is in. The
// script then prints how many WRITEs and SETATTRs the client has sent.
const auditScript = `sh -c '. /lab/lib.sh
grep -q ^tester: /etc/passwd || echo tester:x:1000:1000::/:/bin/sh >> /etc/passwd
/lab/watch $SERVER > /tmp/watched 2>&1 &
watch=$!
until_is watch watching 20 head -1 /tmp/watched
do_mount
m=/mnt/audit-$vers-$port
mkdir $m || die mkdir
rm -rf /tmp/tree && mkdir /tmp/tree && cd /tmp/tree
for d in $(seq $FILES); do
	mkdir d$d
	for f in 1 2 3; do random 5000 > d$d/d$d.$f; done
done
tar cf /tmp/tree.tar . && cd $m && tar xf /tmp/tree.tar && chmod 777 $m || die tar
echo unpacked
until [ -e /host/full-$port ]; do sleep 0.1; done
rm /host/full-$port
cat > /tmp/ops <<-"END"
	cd $1
	for i in $(seq $2); do
		mkdir n$i && echo data > n$i/n$i.a && mv n$i/n$i.a n$i/n$i.b && ln n$i/n$i.b n$i/n$i.c && ln -s to n$i/n$i.d || exit 1
		echo data > n$i/n$i.e && chmod 600 n$i/n$i.e && chown 1000:1000 n$i/n$i.e || exit 1
		truncate -s 2 n$i/n$i.e && touch -d "2001-02-03 04:05:06" n$i/n$i.e || exit 1
		: > n$i/n$i.f && truncate -s 9 n$i/n$i.f || exit 1
		chmod 777 d$i/d$i.1 2> /dev/null && exit 1
		rm n$i/n$i.b n$i/n$i.c n$i/n$i.e n$i/n$i.f && rm n$i/n$i.d && rmdir n$i || exit 1
	done
END
su tester -c "sh /tmp/ops $m $FILES" || die ops
cd /
echo
grep -E "^[[:space:]]*(WRITE|SETATTR):" /proc/self/mountstats
do_umount
sleep 1
kill $watch
cat /tmp/watched' sh`

// TestLabAudit: the audit log has what fanotify has seen at the server, each change once and with its user and path, while its file
// is moved and changed by reloads, while another process takes over, and while its disk is full: with deny, clients wait and nothing is missing; with drop, the
// log says how many lines are missing. The server does not tell how often data or attributes have changed: the client's own
// count and auditScript do.
func TestLabAudit(t *testing.T) {
	needLab(t)
	g := newServer(t, packGuest(t))
	g.launch(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	b := newBridgeProcess(t, g)
	b.noProbes(t)
	const before = "log: {level: info, format: json}\n"
	logTo := func(onFailure, to string) string {
		return fmt.Sprintf("log: {level: info, format: json, audit: {operations: [changes], on_failure: %s, path: %s}}\n", onFailure, to)
	}
	now := logTo("deny", file("first"))
	sockets := t.TempDir()
	b.configure(t, before, fmt.Sprintf("hardening: off\nhandover: {path: %s/h}\n", sockets)+now) // or the bridge could not open /dev/full
	b.configure(t, upstreamsKey, "names: {mode: on}\n"+upstreamsKey)
	change := func(onFailure, to string) {
		t.Helper()
		next := logTo(onFailure, to)
		b.configure(t, now, next)
		now = next
		_ = b.process.cmd.Process.Signal(syscall.SIGHUP)
	}
	g.ready(t)
	b.start(t)
	files := 10
	if labFull() {
		files = 40
	}
	far := farEnd{nfs: b.port, mount: b.port, env: fmt.Sprintf("FILES=%d", files)}
	logged := func() []auditedLine { return auditedLines(t, dir) }
	for i, v := range []struct{ vers, onFailure string }{{"3", "deny"}, {"4.2", "deny"}, {"4.2", "drop"}} {
		if v.onFailure == "drop" && !labFull() {
			continue
		}
		t.Run(v.vers+" "+v.onFailure, func(t *testing.T) {
			first, second := file(fmt.Sprint("a", i)), file(fmt.Sprint("b", i))
			change(v.onFailure, first)
			lines := len(logged())
			j := g.begin(t, strings.Replace(far.script(auditScript, v.vers), "audit-$vers", fmt.Sprintf("audit-$vers-%d", i), 1))
			waitFor(t, patience, "changes", func() bool { return len(logged()) >= lines+20 })
			if err := os.Rename(first, first+".1"); err != nil { // as logrotate does
				t.Fatal(err)
			}
			_ = b.process.cmd.Process.Signal(syscall.SIGHUP)
			waitFor(t, patience, "a new file", func() bool { _, err := os.Stat(first); return err == nil })
			b.handOver(t)
			refused, dropped := b.metric(t, "audit_refused_calls_total"), b.metric(t, "audit_dropped_lines_total")
			waitFor(t, patience, "all files", func() bool { return j.said("unpacked") })
			change(v.onFailure, "/dev/full")
			waitFor(t, patience, "the reload", func() bool { return bytes.Count(b.process.output(), []byte(`"old":"`+first)) > 0 })
			if err := os.WriteFile(filepath.Join(g.dir, fmt.Sprint("full-", b.port)), []byte("go"), 0o644); err != nil {
				t.Fatal(err)
			}
			waitFor(t, patience, "a full disk", func() bool {
				return b.metric(t, "audit_refused_calls_total") >= refused+2 || b.metric(t, "audit_dropped_lines_total") >= dropped+2
			})
			change(v.onFailure, second)
			out := j.wait(t, 3*time.Minute)
			counts, out, _ := strings.Cut(out, "watching\n")
			var got []string
			calls := map[string]int{}
			missing := 0.0
			for _, l := range logged()[lines:] {
				if l.Event == "missing" {
					missing += l.Lines
					continue
				}
				got = append(got, l.said(t)...)
				if result := l.result(); result != "" {
					calls[l.Operation+" "+result]++
					calls[l.Operation+" "+result+" "+path.Base(l.Path)]++
				}
			}
			want := strings.Split(strings.TrimSpace(out), "\n")
			got, want = sortedChanges(got), sortedChanges(want)
			t.Logf("%d changes, %d WRITEs, %d SETATTRs, %v lines missing, %v Calls refused", len(want), calls["WRITE OK"],
				calls["SETATTR OK"], missing, b.metric(t, "audit_refused_calls_total")-refused)
			if d := b.metric(t, "audit_dropped_lines_total") - dropped; d != missing || (missing > 0) != (v.onFailure == "drop") {
				t.Errorf("%v lines are missing by the log, %v by the metric", missing, d)
			}
			if v.onFailure == "drop" {
				want = slices.DeleteFunc(want, func(s string) bool { _, ok := slices.BinarySearch(got, s); return !ok })
			}
			if !slices.Equal(got, want) {
				t.Errorf("the log has %d, and the server has changed %d:\n%s", len(got), len(want), difference(got, want))
			}
			for call, n := range auditCalls(t, counts, files) {
				if c := calls[call]; c > n || c < n && missing == 0 {
					t.Errorf("%s: the log has %d lines, and the client has made %d such Calls", call, c, n)
				}
			}
		})
	}
	b.stop(t)
}

// auditCalls returns how many WRITEs and SETATTRs a client with that many files has made in auditScript: by the client's
// counts, which are in text, and for those files of which the script knows it.
func auditCalls(t *testing.T, text string, files int) map[string]int {
	t.Helper()
	calls := map[string]int{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) != 10 || f[0] != "WRITE:" && f[0] != "SETATTR:" {
			continue
		}
		sent, err := strconv.Atoi(f[1])
		failed, err2 := strconv.Atoi(f[9])
		if err != nil || err2 != nil {
			t.Fatalf("mountstats: %s", line)
		}
		calls[strings.TrimSuffix(f[0], ":")+" OK"] = sent - failed
	}
	if calls["WRITE OK"] == 0 || calls["SETATTR OK"] == 0 {
		t.Fatalf("the client has not counted what it has sent:\n%s", text)
	}
	for i := 1; i <= files; i++ {
		calls[fmt.Sprintf("SETATTR OK n%d.e", i)] = 4
		calls[fmt.Sprintf("SETATTR OK n%d.f", i)] = 1
		calls[fmt.Sprintf("SETATTR PERM d%d.1", i)] = 1
	}
	calls["SETATTR PERM"] = files
	calls["WRITE PERM"] = 0
	return calls
}

// sortedChanges sorts words of guest/watch.c. Of changes of the data or the attributes of a file it keeps one each.
func sortedChanges(words []string) []string {
	slices.Sort(words)
	return slices.CompactFunc(words, func(a, b string) bool {
		return a == b && (strings.HasPrefix(a, "modify ") || strings.HasPrefix(a, "attrib "))
	})
}

// An auditedLine is a line of an audit log.
type auditedLine struct {
	Event, Operation, Path, Result string
	ToPath                         string `json:"to_path"`
	UID                            uint32
	Lines                          float64
}

// auditedLines returns the lines of all files in dir.
func auditedLines(t *testing.T, dir string) (all []auditedLine) {
	t.Helper()
	names, _ := filepath.Glob(filepath.Join(dir, "*"))
	slices.SortFunc(names, func(a, b string) int { // in the order in which they were begun
		return modified(a).Compare(modified(b))
	})
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var l auditedLine
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // it is being written
			}
			if err := json.Unmarshal(line, &l); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			all = append(all, l)
		}
	}
	return all
}

func modified(name string) (at time.Time) {
	if i, err := os.Stat(name); err == nil {
		at = i.ModTime()
	}
	return at
}

// result returns "OK" or "PERM", or nothing for another result.
func (l *auditedLine) result() string {
	switch {
	case strings.HasSuffix(l.Result, "_OK"):
		return "OK"
	case strings.HasSuffix(l.Result, "ERR_PERM"):
		return "PERM"
	}
	return ""
}

// said returns what l says in the words of guest/watch.c. It checks the paths and the user of l.
func (l *auditedLine) said(t *testing.T) []string {
	t.Helper()
	name := func(p string) string {
		base := path.Base(p)
		d, _, inDirectory := strings.Cut(base, ".")
		uid := uint32(0)
		if base[0] == 'n' || l.result() == "PERM" {
			uid = 1000
		}
		if strings.HasPrefix(base, "audit-") {
			inDirectory = false
		}
		if !strings.HasPrefix(p, "/") || inDirectory && path.Base(path.Dir(p)) != d || l.UID != uid {
			t.Errorf("line %+v: the path or the user is wrong", *l)
		}
		return base
	}
	switch l.result() {
	case "PERM":
		name(l.Path)
		return nil
	case "":
		return nil
	}
	switch l.Operation {
	case "CREATE", "OPEN", "MKDIR", "SYMLINK":
		return []string{"create " + name(l.Path)}
	case "LINK":
		return []string{"create " + name(l.ToPath)}
	case "REMOVE", "RMDIR":
		return []string{"delete " + name(l.Path)}
	case "RENAME":
		return []string{"from " + name(l.Path), "to " + name(l.ToPath)}
	case "WRITE":
		return []string{"modify " + name(l.Path)}
	case "SETATTR":
		if n := name(l.Path); !strings.HasSuffix(n, ".f") {
			return []string{"attrib " + n}
		}
		return []string{"modify " + name(l.Path)} // auditScript only truncates it
	}
	return nil
}

// difference lists what one of two sorted lists alone has.
func difference(got, want []string) string {
	var b strings.Builder
	for len(got)+len(want) > 0 {
		switch {
		case len(want) == 0 || len(got) > 0 && got[0] < want[0]:
			fmt.Fprintf(&b, "log: %s\n", got[0])
			got = got[1:]
		case len(got) == 0 || want[0] < got[0]:
			fmt.Fprintf(&b, "server: %s\n", want[0])
			want = want[1:]
		default:
			got, want = got[1:], want[1:]
		}
	}
	return b.String()
}
