package nlm

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/rdmabridge/rdmabridge/internal/loglimit"
)

// A journal is the file STATE/locks, from which a bridge that has restarted knows who holds what. Each line is a record in
// JSON, or an array of those that belong together. A line is written before the Call that it is about goes to the server, so that a bridge that is killed remembers
// at least what the server has. The file is not flushed to the disk: it survives the process, and not the machine, whose
// restart ends the connections of all clients as well.
//
// Only one process may have the directory; the caller of Listen sees to that. The table's lock guards the journal. The
// methods of a nil journal do nothing.
type journal struct {
	path     string // of the file
	file     *os.File
	lines    int      // in the file, and the records of groups
	records  [][]byte // of the present operation
	log      *zerolog.Logger
	failures loglimit.Seldom
}

// A line is a record of the journal. Those that are read may come from an earlier version of the bridge, so fields keep
// their meaning.
type line struct {
	Op     string `json:"op"`               // owner, hold, wait, free, state
	Number uint32 `json:"number,omitempty"` // of the owner

	// An owner.
	Client  string `json:"client,omitempty"` // state has it, too
	Local   string `json:"local,omitempty"`
	Name    []byte `json:"name,omitempty"`
	Svid    uint32 `json:"svid,omitempty"`
	Share   []byte `json:"share,omitempty"`
	UDP     bool   `json:"udp,omitempty"`
	Async   bool   `json:"async,omitempty"`
	Version uint32 `json:"version,omitempty"`
	OH      []byte `json:"oh,omitempty"`
	Flavor  uint32 `json:"flavor,omitempty"`
	Body    []byte `json:"body,omitempty"`
	Mode    uint32 `json:"mode,omitempty"`
	Access  uint32 `json:"access,omitempty"`
	State   uint32 `json:"state,omitempty"` // state has it, too, and hold and wait; left out there, it is the owner's

	Owed bool `json:"owed,omitempty"` // of a state: what follows from it is not done yet

	// What is held, waited for, or free.
	Handle    []byte `json:"handle,omitempty"`
	Start     uint64 `json:"start,omitempty"`
	End       uint64 `json:"end,omitempty"`
	Exclusive uint32 `json:"exclusive,omitempty"` // of a wait
	Asked     bool   `json:"asked,omitempty"`     // of a wait
}

// slackLines is how many dead lines a journal may have beside as many as are alive.
const slackLines = 1024

// openJournal reads the file in a directory into t, and writes it anew.
func openJournal(directory string, t *table, log *zerolog.Logger) error {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	j := &journal{path: filepath.Join(directory, "locks"), log: log}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.read(j.path); err != nil {
		aside := fmt.Sprintf("%s.unreadable-%d", j.path, time.Now().Unix())
		log.Error().Str("event", "nlm_state_unreadable").Err(err).Str("file", aside).AnErr("renamed", os.Rename(j.path, aside)).
			Msg("nlm: the file of locks cannot be read to its end, and what follows is forgotten")
	}
	if err := j.rewrite(t); err != nil {
		return err
	}
	t.journal = j
	return nil
}

// Bounds of a line that is read, and of the records in one that is written.
const (
	maxLine  = 64 << 10
	maxGroup = 16 // of at most 3 KiB
)

// read puts what the file says into t. It ignores a last line that is cut off. The lock is held.
func (t *table) read(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewScanner(f)
	r.Buffer(nil, maxLine)
	r.Split(func(data []byte, _ bool) (int, []byte, error) { // whole lines alone
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			return 0, nil, nil
		}
		return i + 1, data[:i], nil
	})
	for n := 1; r.Scan(); n++ {
		var group []line
		b := r.Bytes()
		if !bytes.HasPrefix(b, []byte{'['}) {
			b = slices.Concat([]byte{'['}, b, []byte{']'})
		}
		err = json.Unmarshal(b, &group)
		for i := 0; i < len(group) && err == nil; i++ {
			err = t.apply(&group[i])
		}
		if err != nil {
			err = fmt.Errorf("line %d: %w", n, err)
			break
		}
	}
	for _, o := range t.owners { // those that hold nothing
		for handle, file := range o.files {
			t.sweep(o, handle, file)
		}
		if t.owners[o.identity] == o && len(o.files) == 0 {
			t.remove(o)
		}
	}
	return errors.Join(err, r.Err())
}

func (t *table) apply(l *line) error {
	switch l.Op {
	case "owner":
		client, err := netip.ParseAddr(l.Client)
		if err != nil {
			return err
		}
		local, err := netip.ParseAddr(l.Local)
		if err != nil {
			return err
		}
		id := identity{client, string(l.Name), l.Svid, string(l.Share)}
		o := t.numbers[l.Number]
		switch {
		case o == nil && t.owners[id] == nil:
			o = &owner{identity: id, number: l.Number, files: make(map[string]*file)}
			t.add(o)
		case o == nil || o.identity != id:
			return errors.New("two owners with one number, or one with two")
		}
		o.path = path{local, l.UDP, l.Async, l.Version}
		o.oh, o.credential = l.OH, credential{l.Flavor, l.Body}
		o.state, o.mode, o.access = l.State, l.Mode, l.Access
	case "hold", "wait", "free":
		o := t.numbers[l.Number]
		if o == nil || l.Start >= l.End || len(l.Handle) > maxHandle {
			return errors.New("a range that is none")
		}
		f := o.files[string(l.Handle)]
		if f == nil {
			f = new(file)
			o.files[string(l.Handle)] = f
		}
		s := span{l.Start, l.End}
		t.unwait(o, f, s)
		if l.Op != "free" {
			f.state = cmp.Or(l.State, o.state)
		}
		switch l.Op {
		case "hold":
			t.hold(o, f, s)
		case "wait":
			t.await(o, string(l.Handle), f, wait{s, l.Exclusive, l.Asked})
		case "free":
			t.unhold(o, string(l.Handle), f, s)
		}
	case "state":
		host, err := netip.ParseAddr(l.Client)
		if err != nil {
			return err
		}
		t.states[host] = monitor{l.State, l.Owed}
	default:
		return fmt.Errorf("an unknown record %q", l.Op)
	}
	if t.all.held+t.all.waiting > 2*maxRanges || len(t.states) > maxStates || len(t.owners) > 2*maxRanges {
		return errors.New("there are too many")
	}
	return nil
}

// write adds a record to those that flush writes.
func (j *journal) write(l *line) {
	b, err := json.Marshal(l)
	if err != nil {
		j.failed(err)
		return
	}
	j.records = append(j.records, b)
}

// flush writes the records of one operation, as one line, so that a bridge that is killed amid it has all of them in its
// file, or none.
func (j *journal) flush() {
	if j == nil || len(j.records) == 0 {
		return
	}
	var b []byte
	switch n := len(j.records); {
	case n == 1:
		b = j.records[0]
	case n > maxGroup:
		b = bytes.Join(j.records, []byte{'\n'})
	default:
		b = slices.Concat([]byte{'['}, bytes.Join(j.records, []byte{','}), []byte{']'})
	}
	if _, err := j.file.Write(append(b, '\n')); err != nil {
		j.failed(err)
	}
	j.lines += len(j.records)
	clear(j.records)
	j.records = j.records[:0]
}

func (j *journal) failed(err error) {
	j.failures.Line(j.log, zerolog.ErrorLevel, "nlm_state_failed").Err(err).Msg("nlm: the file of locks cannot be written")
}

func (j *journal) owner(o *owner) {
	if j != nil {
		j.write(&line{
			Op: "owner", Number: o.number, Client: o.client.String(), Local: o.local.String(), Name: []byte(o.name), Svid: o.svid, Share: []byte(o.share),
			UDP: o.udp, Async: o.async, Version: o.version, OH: o.oh, Flavor: o.credential.flavor, Body: o.credential.body, Mode: o.mode, Access: o.access, State: o.state,
		})
	}
}

// mark says that an owner holds a range, waits for it, or does neither.
func (j *journal) mark(op string, o *owner, handle string, w wait) {
	if j == nil {
		return
	}
	l := line{Op: op, Number: o.number, Handle: []byte(handle), Start: w.Start, End: w.End, Exclusive: w.exclusive, Asked: w.asked}
	if op != "free" {
		l.State = o.files[handle].state
	}
	j.write(&l)
}

func (j *journal) monitor(host netip.Addr, m monitor) {
	if j != nil {
		j.write(&line{Op: "state", Client: host.String(), State: m.state, Owed: m.owed})
	}
}

// tidy writes the file anew if more than half of it is dead.
func (j *journal) tidy(t *table) {
	if j == nil || j.lines <= slackLines+2*(len(t.owners)+t.all.held+t.all.waiting+len(t.states)) {
		return
	}
	if err := j.rewrite(t); err != nil {
		j.lines = 0 // try again later
		j.failures.Line(j.log, zerolog.ErrorLevel, "nlm_state_failed").Err(err).Msg("nlm: the file of locks cannot be written anew")
	}
}

// rewrite writes what t has into a new file, which then takes the place of the old one.
func (j *journal) rewrite(t *table) error {
	f, err := os.OpenFile(j.path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	next := &journal{file: f, log: j.log}
	for host, m := range t.states {
		next.monitor(host, m)
	}
	for _, o := range t.owners {
		next.owner(o)
		for handle, file := range o.files {
			for _, s := range file.held {
				next.mark("hold", o, handle, wait{span: s})
			}
			for _, s := range file.pending {
				if file.waiting(s) < 0 {
					next.mark("hold", o, handle, wait{span: s})
				}
			}
			for _, w := range slices.Concat(file.waits, file.asking) {
				next.mark("wait", o, handle, w)
			}
		}
		next.flush()
	}
	next.flush()
	if err := os.Rename(f.Name(), j.path); err != nil {
		f.Close()
		return err
	}
	j.close()
	j.file, j.lines, j.records = f, next.lines, nil
	return nil
}

func (j *journal) close() {
	if j != nil && j.file != nil {
		j.file.Close()
	}
}
