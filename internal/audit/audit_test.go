package audit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/internal/rpc/xdr"
	"github.com/rdmabridge/rdmabridge/internal/testkit"
	"github.com/rdmabridge/rdmabridge/metrics"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var update = flag.Bool("update", false, "write testdata")

// A disk is an Output with room for so many octets, that can block.
type disk struct {
	mu   sync.Mutex
	text bytes.Buffer
	room int
	torn bool
	gate chan struct{} // Write waits for it; nil for not
}

var errFull = errors.New("no space left on device")

func (d *disk) Write(b []byte) (int, error) {
	if d.gate != nil {
		<-d.gate
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.torn {
		if d.room == 0 {
			return 0, errFull
		}
		d.text.WriteByte('\n')
		d.room--
	}
	n := min(len(b), d.room)
	d.text.Write(b[:n])
	d.room -= n
	d.torn = n > 0 && b[n-1] != '\n'
	if n < len(b) {
		return n, errFull
	}
	return n, nil
}
func (d *disk) Reopen() error { return nil }
func (d *disk) Close() error  { return nil }

func (d *disk) grow(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room += n
}

func (d *disk) lines() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Split(strings.TrimSuffix(d.text.String(), "\n"), "\n")
}

func start(o Options) *Log {
	m := metrics.New()
	o.Lines, o.Dropped, o.Refused, o.Loops = m.Counter(metrics.AuditLines), m.Counter(metrics.AuditDroppedLines), m.Counter(metrics.AuditRefusedCalls), 1
	if o.Choice.Classes == 0 {
		o.Choice.Classes = Changes
	}
	if o.Names == nil {
		o.Names = func() *names.Watch { return nil }
	}
	return Start(o)
}

var client = netip.MustParseAddrPort("192.0.2.1:700")

// A player shows Calls to a Log, and to what learns names if that is not nil, as a loop does.
type player struct {
	*Log
	names   *names.Watch
	next    uint64
	refused int
}

// at is the time that all Calls end at.
var at = time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)

// play shows a Call with its Reply, which may be nil.
func (p *player) play(operation string, call, reply []byte, over observe.TapOver) {
	var h oncrpc.Call
	if oncrpc.ParseCall(call, &h) != nil {
		return
	}
	if p.Wants(&observe.TapCall{Client: client, Program: h.Program, Version: h.Version, Procedure: h.Procedure, Operation: operation}) == 0 {
		return
	}
	p.next++
	m := observe.TapMessage{
		Call: p.next, Conn: &observe.TapConn{Leg: observe.TapClients, Name: "nfs", Peer: client}, At: at, Identity: "host.example.com",
		Parts: [][]byte{call}, Program: h.Program, Version: h.Version, Procedure: h.Procedure, Operation: operation,
	}
	p.Message(&m)
	if p.names != nil {
		p.names.Message(&m)
	}
	if m.Refuse {
		p.refused++
		p.Over(&observe.TapOver{Call: p.next, At: at, Result: "local", Postponed: true})
		return
	}
	m.Out, m.Identity = true, ""
	p.Message(&m) // on its way to the server
	if reply != nil {
		m.Reply, m.Parts = true, [][]byte{reply[:len(reply)/2], reply[len(reply)/2:]}
		m.Out = false
		p.Message(&m)
		m.Out = true
		p.Message(&m)
		if p.names != nil {
			p.names.Message(&m)
		}
	}
	over.Call, over.At = p.next, at
	if over.Result == "" {
		over.Result, over.Sent = "replied", true
	}
	if p.names != nil {
		p.names.Over(&over)
	}
	p.Over(&over)
}

// sys is an AUTH_SYS credential of uid 7 and gid 8, with an empty verifier.
func sys() []byte {
	body := xdr.AppendWords(xdr.AppendOpaque(xdr.AppendUint32(nil, 1), []byte("host")), 7, 8, 0)
	return xdr.AppendWords(xdr.AppendOpaque(xdr.AppendUint32(nil, oncrpc.FlavorSys), body), 0, 0)
}

type items = []any

func encode(b []byte, all []any) []byte {
	for _, i := range all {
		switch i := i.(type) {
		case int:
			b = xdr.AppendUint32(b, uint32(i))
		case string:
			b = xdr.AppendOpaque(b, []byte(i))
		}
	}
	return b
}

// message returns a Call of NFS and its Reply.
func message(version, procedure uint32, args, results []byte) (call, reply []byte) {
	call = append(append(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, version, procedure), sys()...), args...)
	return call, append(xdr.AppendWords(nil, 1, 1, 0, 0, 0, 0), results...)
}

func remove3(name string, status int) (call, reply []byte) {
	return message(3, 12, encode(nil, items{"dddd", name}), encode(nil, items{status, 0, 0}))
}

// A compound builds a COMPOUND and its Reply, in which the operations after one that fails have no result.
type compound struct {
	args, results []byte
	n, answered   uint32
	status        uint32
}

func (c *compound) op(number, status uint32, args, results items) *compound {
	c.n++
	c.args = encode(xdr.AppendUint32(c.args, number), args)
	if c.status == 0 {
		c.answered++
		c.status = status
		c.results = encode(xdr.AppendWords(c.results, number, status), results)
	}
	return c
}

func (c *compound) messages() (call, reply []byte) {
	return message(4, 1, append(xdr.AppendWords(nil, 0, 1, c.n), c.args...), append(xdr.AppendWords(nil, c.status, 0, c.answered), c.results...))
}

// head is how each line of an operation begins here.
const head = `{"time":"2026-01-02T03:04:05.006Z","event":"change","client":"192.0.2.1","identity":"host.example.com","flavor":"sys","uid":7,"gid":8,"listener":"nfs","program":"nfs",`

// logged returns what is logged of what play shows.
func logged(t *testing.T, c Choice, play func(p *player)) string {
	t.Helper()
	d := &disk{room: 1 << 30}
	l := start(Options{Output: d, Choice: c})
	play(&player{Log: l})
	l.Close()
	if n := l.memory.Load(); n != 0 {
		t.Errorf("%d octets of memory are left", n)
	}
	for _, line := range d.lines() {
		if line != "" && !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
	return strings.ReplaceAll(strings.Join(d.lines(), "\n"), head, "")
}

const (
	putfh, putrootfh, lookup, savefh, rename, remove, link, opened, create, restorefh, setattr, write = 22, 24, 15, 32, 29, 28, 11, 18, 6, 31, 34, 38
)

// TestCompound: the places that operations are about, those that the server has executed alone, and the status of each.
func TestCompound(t *testing.T) {
	change := items{1, 0, 0, 0, 0}
	stateid := items{0, 0, 0, 0}
	owner := func(createIt ...any) items { return append(items{1, 2, 0, 1, 1, "owner"}, createIt...) }
	openedResult := append(append(items{1, 2, 3, 4}, change...), 0, 0, 0)
	for _, v := range []struct {
		name, want string
		chosen     Classes
		c          *compound
	}{
		{
			"remove", `"version":4,"operation":"REMOVE","handle":"64646464","name":"a","result":"NFS4_OK"}`, Changes,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(remove, 0, items{"a"}, change),
		},
		{
			"two removes, the second of which fails, and a third", `"version":4,"operation":"REMOVE","handle":"64646464","name":"a","result":"NFS4_OK"}` + "\n" +
				`"version":4,"operation":"REMOVE","handle":"64646464","name":"b","result":"NFS4ERR_NOENT"}`, Changes,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(remove, 0, items{"a"}, change).op(remove, 2, items{"b"}, nil).op(remove, 0, items{"c"}, change),
		},
		{
			"rename", `"version":4,"operation":"RENAME","handle":"64646464","name":"a","to_handle":"65656565","to_name":"b","result":"NFS4_OK"}`, Changes,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(savefh, 0, nil, nil).op(putfh, 0, items{"eeee"}, nil).op(rename, 0, items{"a", "b"}, append(change, change...)),
		},
		{
			"link", `"version":4,"operation":"LINK","handle":"66666666","to_path":"/x/b","result":"NFS4_OK"}`, Changes,
			new(compound).op(putfh, 0, items{"ffff"}, nil).op(savefh, 0, nil, nil).op(putrootfh, 0, nil, nil).op(lookup, 0, items{"x"}, nil).op(link, 0, items{"b"}, change),
		},
		{
			"below a handle", `"version":4,"operation":"REMOVE","handle":"64646464","below":"/x/y","name":"a","result":"NFS4_OK"}`, Changes,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(lookup, 0, items{"x"}, nil).op(lookup, 0, items{"y"}, nil).op(remove, 0, items{"a"}, change),
		},
		{
			"create", `"version":4,"operation":"CREATE","handle":"64646464","name":"a","target":"to","result":"NFS4_OK"}`, Changes,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(create, 0, items{5, "to", "a", 0, ""}, append(change, 0)),
		},
		{
			"open that creates, and setattr of what it has opened", `"version":4,"operation":"OPEN","handle":"64646464","name":"a","result":"NFS4_OK"}` + "\n" +
				`"version":4,"operation":"SETATTR","handle":"64646464","below":"/a","result":"NFS4ERR_ACCESS"}`, Changes,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(opened, 0, owner(1, 0, 1, 0, "", 0, "a"), openedResult).op(setattr, 13, append(stateid, 0, ""), items{0}),
		},
		{"open that creates nothing", "", Changes, new(compound).op(putfh, 0, items{"dddd"}, nil).op(opened, 0, owner(0, 0, "a"), openedResult)},
		{
			"open", `"version":4,"operation":"OPEN","handle":"64646464","name":"a","result":"NFS4_OK"}`, Opens,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(opened, 0, owner(0, 0, "a"), openedResult),
		},
		{
			"a write, and a remove behind its data", `"version":4,"operation":"WRITE","handle":"66666666","octets":3,"result":"NFS4_OK"}` + "\n" +
				`"version":4,"operation":"REMOVE","handle":"64646464","name":"a","result":"NFS4_OK"}`, Changes,
			new(compound).op(putfh, 0, items{"ffff"}, nil).op(write, 0, append(stateid, 0, 0, 2, "data"), items{3, 2, 0, 0}).op(putfh, 0, items{"dddd"}, nil).op(remove, 0, items{"a"}, change),
		},
		{
			"a lookup that is denied", `"version":4,"operation":"LOOKUP","handle":"64646464","name":"secret","result":"NFS4ERR_ACCESS"}`, Denials,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(lookup, 13, items{"secret"}, nil),
		},
		{"a lookup that fails otherwise", "", Denials, new(compound).op(putfh, 0, items{"dddd"}, nil).op(lookup, 2, items{"x"}, nil)},
		{
			"an operation that nobody knows", `"version":4,"operation":"operations that cannot be read","result":"NFS4ERR_OP_ILLEGAL"}`, Changes,
			new(compound).op(putfh, 0, items{"dddd"}, nil).op(999, 10044, nil, nil),
		},
	} {
		got := logged(t, Choice{Classes: v.chosen}, func(p *player) {
			call, reply := v.c.messages()
			p.play("COMPOUND", call, reply, observe.TapOver{})
		})
		got = strings.ReplaceAll(got, strings.Replace(head, "change", "open", 1), "")
		got = strings.ReplaceAll(got, strings.Replace(head, "change", "denial", 1), "")
		if got != v.want {
			t.Errorf("%s:\n got %s\nwant %s", v.name, got, v.want)
		}
	}
}

// TestOnce: a Call that another one stands for has no line, and one whose client has gone has one with what is known.
func TestOnce(t *testing.T) {
	got := logged(t, Choice{}, func(p *player) {
		call, reply := remove3("a", 0)
		p.play("REMOVE", call, reply, observe.TapOver{})
		p.play("REMOVE", call, reply, observe.TapOver{Result: "replied", Sent: true, Repeated: true})
		p.play("REMOVE", call, nil, observe.TapOver{Result: "absorbed", Repeated: true})
		p.play("REMOVE", call, nil, observe.TapOver{Result: "client_gone", Sent: true})
		p.play("REMOVE", call, nil, observe.TapOver{Result: "client_gone"})
		p.play("REMOVE", call, reply, observe.TapOver{Result: "client_gone", Sent: true})
		p.play("REMOVE", call, xdr.AppendWords(nil, 1, 1, 1, 1, 5), observe.TapOver{Result: "local"})
	})
	op := `"version":3,"operation":"REMOVE","handle":"64646464","name":"a",`
	if want := strings.Join([]string{
		op + `"result":"NFS3_OK"}`, op + `"result":"unknown","call":"client_gone"}`, op + `"result":"not sent","call":"client_gone"}`,
		op + `"result":"NFS3_OK","call":"client_gone"}`, op + `"result":"AUTH_TOOWEAK","call":"local"}`,
	}, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestHostileNames: whatever a name is, there is one line, and the name in it is the one that the client has sent.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		"a\n{\"event\":\"change\"}", `a","result":"NFS3_OK"}`, "\x00\x01\x1f\x7f", "\xff\xfe not UTF-8 \xc3", strings.Repeat("\xf0\x9f", 127) + "x",
		"\u2028\u2029", strings.Repeat("n", 255), "", "../../etc/passwd",
	} {
		got := logged(t, Choice{}, func(p *player) {
			call, reply := remove3(name, 13)
			p.play("REMOVE", call, reply, observe.TapOver{})
		})
		var l struct {
			Name, Result string
			Hex          string `json:"name_hex"`
		}
		if err := json.Unmarshal([]byte(head+got), &l); err != nil || strings.Contains(got, "\n") || l.Result != "NFS3ERR_ACCES" {
			t.Errorf("%q: %s: %v", name, got, err)
		}
		if l.Hex != "" {
			b, _ := hex.DecodeString(l.Hex)
			l.Name = string(b)
		}
		if l.Name != name {
			t.Errorf("%q is logged as %q", name, l.Name)
		}
	}
}

// TestHide: a name that fits a pattern is in no line.
func TestHide(t *testing.T) {
	for name, want := range map[string]string{"secret-x": `"name":"***"`, "not-secret": `"name":"not-secret"`} {
		got := logged(t, Choice{Hide: names.Hidden{"*.key", "secret-*"}}, func(p *player) {
			call, reply := remove3(name, 13)
			p.play("REMOVE", call, reply, observe.TapOver{})
		})
		if !strings.Contains(got, want) {
			t.Errorf("%s is logged as %s", name, got)
		}
	}
}

// TestPathsOfTheTime: a line has the path that its file had when the Call was over, and what waits for paths is written at the
// end, and when names are not learned any more.
func TestPathsOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		learns := func() *names.Watch {
			return names.Start(names.Options{Loops: 1, Memory: 1 << 20, Sample: 1, Missed: func(uint64) {}})
		}
		d := &disk{room: 1 << 30}
		p := &player{names: learns()}
		p.Log = start(Options{Output: d, Names: func() *names.Watch { return p.names }})
		lookup := func(name string) {
			call, reply := message(3, 3, encode(nil, items{"dddd", name}), encode(nil, items{0, "ffff", 0, 0}))
			p.next++
			m := observe.TapMessage{Call: p.next, Conn: &observe.TapConn{Leg: observe.TapClients, Name: "nfs", Peer: client}, At: at, Parts: [][]byte{call}, Program: oncrpc.ProgramNFS, Version: 3, Procedure: 3, Operation: "LOOKUP"}
			p.names.Message(&m)
			m.Reply, m.Out, m.Parts = true, true, [][]byte{reply}
			p.names.Message(&m)
			p.names.Over(&observe.TapOver{Call: p.next, At: at})
		}
		write := func() {
			call, reply := message(3, 7, encode(nil, items{"ffff", 0, 0, 4, 2, "data"}), encode(nil, items{0, 0, 0, 4, 2, 0, 0}))
			p.play("WRITE", call, reply, observe.TapOver{})
		}
		rename := func(from, to string) {
			call, reply := message(3, 14, encode(nil, items{"dddd", from, "dddd", to}), encode(nil, items{0, 0, 0, 0, 0}))
			p.play("RENAME", call, reply, observe.TapOver{})
		}
		lookup("a")
		write()
		rename("a", "b")
		write() // all of these are over before anybody has looked at names
		old := p.names
		p.names = learns() // as a reload does
		old.Close()
		lookup("c")
		write()
		p.Close()
		p.names.Close()
		var paths []string
		for _, line := range d.lines() {
			var l struct{ Operation, Path, Name string }
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatal(err)
			}
			paths = append(paths, l.Operation+" "+l.Path+l.Name)
		}
		if want := []string{"WRITE .../a", "RENAME a", "WRITE .../b", "WRITE .../c"}; !slices.Equal(paths, want) {
			t.Errorf("got %q, want %q", paths, want)
		}
		if n := p.memory.Load(); n != 0 {
			t.Errorf("%d octets of memory are left", n)
		}
	})
}

// TestChoice: clients and users that are not chosen have no lines, and GSS users, whom nobody knows, have some.
func TestChoice(t *testing.T) {
	call, reply := remove3("a", 0)
	for _, v := range []struct {
		c    Choice
		want bool
	}{
		{Choice{}, true},
		{Choice{Clients: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, true},
		{Choice{Clients: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}, false},
		{Choice{UIDs: []IDs{{0, 0}, {5, 7}}}, true},
		{Choice{UIDs: []IDs{{0, 6}, {8, 9}}}, false},
		{Choice{Classes: Opens}, false},
		{Choice{Classes: Denials}, false},
	} {
		if got := logged(t, v.c, func(p *player) { p.play("REMOVE", call, reply, observe.TapOver{}) }); got != "" != v.want {
			t.Errorf("%+v: %q", v.c, got)
		}
	}
	gss := append(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 3, 12, oncrpc.FlavorGSS), xdr.AppendOpaque(nil, xdr.AppendWords(nil, 1, 0, 9, 1, 0))...)
	gss = encode(xdr.AppendWords(gss, 0, 0), items{"dddd", "a"})
	got := logged(t, Choice{UIDs: []IDs{{0, 6}}}, func(p *player) { p.play("REMOVE", gss, reply, observe.TapOver{}) })
	if !strings.Contains(got, `"flavor":"gss","listener"`) {
		t.Errorf("GSS: %q", got)
	}
}

// TestExports: what is known to be outside of the exports has no line. What is not known has one, and so has what leads inside.
func TestExports(t *testing.T) {
	paths := map[string]string{"home": "/home", "homes": "/homes", "sub": "/home/a/b", "far": ".../x"}
	at := func(handle, below, name string) place {
		return place{handle: handle, below: below, name: name, named: name != "", base: paths[handle]}
	}
	rooted := func(below string) place { return place{rooted: true, below: below} }
	for _, v := range []struct {
		at, to place
		want   bool
	}{
		{at("home", "", ""), place{}, true},
		{at("home", "", "a"), place{}, true},
		{at("sub", "/c", "d"), place{}, true},
		{at("homes", "", "a"), place{}, false},
		{at("far", "", "a"), place{}, true},
		{at("unknown", "", "a"), place{}, true},
		{rooted("/home"), place{}, true},
		{rooted("/srv/home"), place{}, false},
		{at("homes", "", "a"), at("home", "", "a"), true},
		{at("homes", "", "a"), at("homes", "", "b"), false},
		{at("homes", "", "a"), at("unknown", "", "b"), true},
		{place{}, place{}, true},
	} {
		o := operation{at: v.at, to: v.to}
		if got := o.in([]string{"/srv/x", "/home"}); got != v.want {
			t.Errorf("%+v to %+v: %v", v.at, v.to, got)
		}
		if !o.in([]string{"/"}) || !o.in(nil) {
			t.Errorf("%+v to %+v is not below the root", v.at, v.to)
		}
	}
}

// TestOpaque: encrypted Calls are counted for each client once a minute.
func TestOpaque(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 1 << 20}
		l := start(Options{Output: d})
		p := &player{Log: l}
		gss := append(xdr.AppendWords(nil, 1, 0, 2, oncrpc.ProgramNFS, 3, 12, oncrpc.FlavorGSS), xdr.AppendOpaque(nil, xdr.AppendWords(nil, 1, 0, 9, 3, 0))...)
		gss = encode(xdr.AppendWords(gss, 0, 0), items{"encrypted"})
		for range 3 {
			p.play("REMOVE", gss, nil, observe.TapOver{})
		}
		time.Sleep(opaqueEvery + time.Second)
		p.play("REMOVE", gss, nil, observe.TapOver{})
		l.Close()
		if s := strings.Join(d.lines(), "\n"); strings.Count(s, `"event":"opaque","client":"192.0.2.1","calls":`) != 2 || !strings.Contains(s, `"calls":3}`) || !strings.Contains(s, `"calls":1}`) {
			t.Error(s)
		}
	})
}

// written waits in a bubble until what is over is written, or cannot be.
func written() {
	time.Sleep(gather)
	synctest.Wait()
}

// TestGather: a line is written soon after its Call is over, also if what learns names has seen the Call, and many lines are
// written at once.
func TestGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, w := range []*names.Watch{nil, names.Start(names.Options{Loops: 1, Memory: 1 << 20, Sample: 1, Missed: func(uint64) {}})} {
			d := &disk{room: 1 << 30}
			l := start(Options{Output: d, Names: func() *names.Watch { return w }})
			p := &player{Log: l, names: w}
			many := func(n int) (lines int) {
				for range n {
					call, reply := remove3("a", 0)
					p.play("REMOVE", call, reply, observe.TapOver{})
				}
				synctest.Wait()
				_, lines = missing(d.lines())
				return lines
			}
			if got := many(10); got != 0 {
				t.Errorf("%d lines at once", got)
			}
			written()
			if got := many(0); got != 10 {
				t.Errorf("%d lines after a while", got)
			}
			if got := many(4 * halfFull); got < halfFull {
				t.Errorf("%d of many lines at once", got)
			}
			l.Close()
			if w != nil {
				w.Close()
			}
		}
	})
}

// TestFull: lines for which the disk has no room are counted, and the log says how many as soon as there is room.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lines = 50
		d := &disk{room: 2500} // ends amid a line
		var out bytes.Buffer
		l := start(Options{Output: d, Log: zerolog.New(&out)})
		p := &player{Log: l}
		for i := range lines {
			call, reply := remove3(fmt.Sprint(i), 0)
			p.play("REMOVE", call, reply, observe.TapOver{})
			written()
		}
		d.grow(1 << 20)
		time.Sleep(2 * retryEvery) // and no Call comes
		told, good := missing(d.lines())
		if good == 0 || good+told != lines || l.o.Dropped.Value() != uint64(told) || l.o.Lines.Value() != uint64(good) {
			t.Errorf("%d lines and %d missing of %d; %d counted as dropped, %d as written", good, told, lines, l.o.Dropped.Value(), l.o.Lines.Value())
		}
		if !strings.Contains(out.String(), `"event":"audit_log_failed","error":"no space left on device"`) {
			t.Errorf("the log says %s", &out)
		}
		l.Close()
	})
}

// missing returns how many lines the log says are missing, and how many there are.
func missing(lines []string) (told, good int) {
	for _, line := range lines {
		var m struct {
			Event string
			Lines int
		}
		switch json.Unmarshal([]byte(line), &m); m.Event {
		case "missing":
			told += m.Lines
		case "change":
			good++
		}
	}
	return told, good
}

// TestBlocked: a disk that hangs costs lines, or changes are refused, and nothing waits. The log says how many lines are missing.
func TestBlocked(t *testing.T) {
	for _, deny := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &disk{room: 1 << 30, gate: make(chan struct{})}
			l := start(Options{Output: d, Choice: Choice{Deny: deny}})
			p := &player{Log: l}
			call, reply := remove3(strings.Repeat("n", 4096), 0)
			p.play("REMOVE", call, reply, observe.TapOver{})
			written() // it hangs
			const calls = mostMemory/4096 + 100
			for range calls {
				p.play("REMOVE", call, reply, observe.TapOver{})
			}
			close(d.gate)
			written()
			l.Close()
			told, good := missing(d.lines())
			if deny && told > 0 || !deny && p.refused > 0 || told+p.refused < 100 || told+p.refused+good != calls+1 || l.o.Refused.Value() != uint64(p.refused) {
				t.Errorf("deny %v: %d lines, %d missing and %d refused", deny, good, told, p.refused)
			}
		})
	}
}

// TestDeny: while the disk is full, changes are refused, and what was under way then is in the log as soon as there is room, in
// its place and once.
func TestDeny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{room: 2500} // ends amid a line
		var out bytes.Buffer
		l := start(Options{Output: d, Log: zerolog.New(&out), Choice: Choice{Deny: true, Classes: Changes | Denials}})
		p := &player{Log: l}
		sent := 0
		remove := func(status int) {
			before := p.refused
			call, reply := remove3(fmt.Sprint(sent), status)
			p.play("REMOVE", call, reply, observe.TapOver{})
			sent += 1 - (p.refused - before)
		}
		for range 5 {
			remove(0)
		}
		for range 45 {
			remove(0)
			written()
		}
		if p.refused == 0 || sent < 6 {
			t.Errorf("%d refused of %d", p.refused, sent)
		}
		call, reply := message(3, 1, encode(nil, items{"dddd"}), encode(nil, items{13}))
		p.play("GETATTR", call, reply, observe.TapOver{}) // changes nothing, and waits
		if time.Sleep(2 * retryEvery); !l.failing.Load() {
			t.Error("changes are not refused any more")
		}
		d.grow(1 << 20)
		time.Sleep(2 * retryEvery)
		remove(0)
		l.Close()
		var names []string
		denials := 0
		for _, line := range d.lines() {
			var m struct{ Event, Name string }
			if json.Unmarshal([]byte(line), &m) != nil {
				continue // the beginning that was left
			}
			if m.Event == "denial" {
				denials++
			} else {
				names = append(names, m.Event+m.Name)
			}
		}
		var want []string
		for i := range sent {
			want = append(want, fmt.Sprint("change", i))
		}
		if !slices.Equal(names, want) || denials != 1 {
			t.Errorf("the log has %q and %d denials, want %q", names, denials, want)
		}
		if l.o.Dropped.Value() != 0 || l.o.Refused.Value() != uint64(p.refused) {
			t.Errorf("%d lines dropped, %d Calls refused of %d", l.o.Dropped.Value(), l.o.Refused.Value(), p.refused)
		}
		for _, event := range []string{`"event":"audit_log_failed","error":"no space left on device"`, `"event":"audit_log_restored"`} {
			if strings.Count(out.String(), event) != 1 {
				t.Errorf("the log says %s", &out)
			}
		}
	})
}

// TestDenyEnds: a reload that gives up refusing, or names another file, and the end of the bridge, do not wait for the disk.
func TestDenyEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		deny := Choice{Deny: true, Classes: Changes}
		for _, v := range []struct {
			name    string
			do      func(l *Log, other *disk)
			dropped uint64
			others  int
		}{
			{"drop", func(l *Log, _ *disk) { l.Set(Choice{Classes: Changes}, nil) }, 1, 0},
			{"another file", func(l *Log, other *disk) { l.Set(deny, other) }, 0, 1},
			{"the end", func(*Log, *disk) {}, 1, 0},
		} {
			other := &disk{room: 1 << 20}
			l := start(Options{Output: new(disk), Choice: deny})
			p := &player{Log: l}
			call, reply := remove3("a", 0)
			p.play("REMOVE", call, reply, observe.TapOver{})
			written()
			began := time.Now()
			v.do(l, other)
			synctest.Wait()
			l.Close()
			if _, good := missing(other.lines()); good != v.others || l.o.Dropped.Value() != v.dropped || time.Since(began) > 0 {
				t.Errorf("%s: %d lines in the other file, %d dropped, after %v", v.name, good, l.o.Dropped.Value(), time.Since(began))
			}
		}
	})
}

// TestMemory: a COMPOUND of very many operations has no lines beyond the memory for them, and the log says so.
func TestMemory(t *testing.T) {
	const removes = mostMemory/256 + 1
	c := new(compound).op(putfh, 0, items{"dddd"}, nil)
	for range removes {
		c.op(remove, 0, items{"a"}, items{1, 0, 0, 0, 0})
	}
	call, reply := c.messages()
	got := logged(t, Choice{}, func(p *player) { p.play("COMPOUND", call, reply, observe.TapOver{}) })
	if told, good := missing(strings.Split(got, "\n")); told != removes || good != 0 {
		t.Errorf("%d lines and %d missing of %d: %.200s", good, told, removes, got)
	}
}

// TestFile: Reopen is what logrotate does, and after a Write that ended amid a line the next one begins a new line.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	o, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	put := func(s string) {
		t.Helper()
		if _, err := o.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	has := func(path, want string) {
		t.Helper()
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s has %q, want %q: %v", path, b, want, err)
		}
	}
	put("one\nhal") // as a disk does that gets full
	put("two\n")
	has(path, "one\nhal\ntwo\n")
	put("hal")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := o.Reopen(); err != nil {
		t.Fatal(err)
	}
	put("three\n")
	has(path, "three\n")
	if i, err := os.Stat(path); err != nil || i.Mode().Perm()&0o007 != 0 {
		t.Errorf("others may use the file: %v %v", i.Mode(), err)
	}
	if _, err := OpenFile(filepath.Join(path, "x")); err == nil {
		t.Error("a path in a file is a file")
	}
}

// vectors are the Calls and Replies that were made from the XDR of the RFCs for package nfs.
func vectors(t testing.TB, f func(id string, call, reply []byte)) {
	b, err := os.ReadFile("../rpc/ulb/nfs/testdata/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Vectors []struct {
			ID, Call string
			Replies  []struct{ Name, Reply string }
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	for _, v := range v.Vectors {
		call, _ := hex.DecodeString(v.Call)
		for _, r := range v.Replies {
			reply, _ := hex.DecodeString(r.Reply)
			f(v.ID+" "+r.Name, call, reply)
		}
	}
}

// TestVectors: what is logged of Calls and Replies of the RFCs. testdata/lines.txt was compared with them by hand.
func TestVectors(t *testing.T) {
	var b strings.Builder
	vectors(t, func(id string, call, reply []byte) {
		got := logged(t, Choice{Classes: Changes | Opens}, func(p *player) { p.play("?", call, reply, observe.TapOver{}) })
		for line := range strings.Lines(got) {
			_, line, _ = strings.Cut(line, `"identity":"host.example.com",`)
			fmt.Fprintf(&b, "%s: %s\n", id, strings.TrimSpace(line))
		}
	})
	const file = "testdata/lines.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%swant what is in %s", b.String(), file)
	}
}

func FuzzLines(f *testing.F) {
	vectors(f, func(_ string, call, reply []byte) { f.Add(call, reply) })
	f.Fuzz(func(t *testing.T, call, reply []byte) {
		logged(t, Choice{Classes: Changes | Opens | Denials}, func(p *player) { p.play("?", call, reply, observe.TapOver{}) })
	})
}
