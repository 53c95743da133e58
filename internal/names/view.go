package names

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// A Query says what to show.
type Query struct {
	Minutes int    // what was counted in so many minutes, 1 to MostMinutes, and up to one more
	Rows    int    // the most rows of each table
	Export  string // only the files and clients of it; "" for all
}

// MostMinutes is how long what was counted is kept.
const MostMinutes = mostSlots - 1

// Names returns what is used most, by all Calls that are over. It returns nil if w is closed.
func (w *Watch) Names(q Query) (n *status.Names) {
	w.inside(func() { n = w.names(q, time.Now()) })
	return n
}

func (w *Watch) names(q Query, now time.Time) *status.Names {
	slots, since := w.hot.last(q.Minutes, now)
	n := &status.Names{
		Since: since, Time: now, Sample: part(slots), Known: len(w.book.table.entries), Used: w.book.table.used,
		Missed: w.missed, Opaque: w.opaque,
	}
	files, high := total(slots, func(c *counts) *sketch[file] { return c.files })
	n.Files = rows(q, files, high, func(f file) status.Hot { return w.file(f) })
	exports, high2 := total(slots, func(c *counts) *sketch[export] { return c.exports })
	n.Exports = rows(Query{Rows: q.Rows}, exports, high2, func(x export) status.Hot { return w.export(x) })
	users, high3 := total(slots, func(c *counts) *sketch[user] { return c.users })
	n.Clients = rows(q, users, high3, func(u user) status.Hot {
		h := w.export(u.export)
		h.Client = clientOf(u.client)
		return h
	})
	return n
}

func (w *Watch) export(x export) status.Hot {
	return status.Hot{Listener: x.listener, Export: w.book.exportName(x, w.redact.path)}
}

func (w *Watch) file(f file) status.Hot {
	p := w.book.where(f.listener, []byte(f.handle), nil, w.redact.path)
	h := status.Hot{Listener: f.listener, Export: p.Export, Path: p.Path, Removed: p.removed}
	if h.Path == "" {
		h.Path = fmt.Sprintf("handle ...%x", f.handle[max(0, len(f.handle)-12):])
	}
	return h
}

// rows makes rows of tallies: name says what a key is. Keys of the same name are one row.
func rows[K comparable](q Query, sum map[K]*tally, high map[K]float64, name func(K) status.Hot) []status.Hot {
	type named struct {
		tally
		high float64
	}
	merged := make(map[status.Hot]*named)
	for k, t := range sum {
		h := name(k)
		if q.Export != "" && h.Export != q.Export {
			continue
		}
		m := merged[h]
		if m == nil {
			m = new(named)
			merged[h] = m
		}
		m.add(t)
		m.high += high[k]
	}
	all := make([]status.Hot, 0, len(merged))
	for h, m := range merged {
		// Twice the standard deviation: 19 of 20 samples are nearer.
		h.Calls, h.Error = m.count, max(m.over, m.high)+2*math.Sqrt(m.variance)
		h.Read, h.Written = m.read, m.written
		if n := m.count - m.over; n > 0 {
			h.Mean = m.seconds / n
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b status.Hot) int {
		return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Export, b.Export), cmp.Compare(a.Client, b.Client))
	})
	return all[:min(len(all), q.Rows)]
}

// Hidden are patterns of path.Match of names that are shown as "***".
type Hidden []string

// name returns a part of a path as it is shown.
func (h Hidden) name(name string) string {
	for _, pattern := range h {
		if ok, _ := path.Match(pattern, name); ok {
			return "***"
		}
	}
	return name
}

// Path returns a path, or a name, as it is shown.
func (h Hidden) Path(p string) string {
	if len(h) == 0 {
		return p
	}
	parts := strings.Split(p, "/")
	for i, name := range parts {
		if name != "" && (i > 0 || name != unknownAbove) {
			parts[i] = h.name(name)
		}
	}
	return strings.Join(parts, "/")
}

// A redactor hides names, and shows the others as keyed hashes if it has a key, so that whoever sees them can tell them
// apart and no more. The key ends with the process.
type redactor struct {
	hide Hidden
	key  []byte // nil to show the others as they are
}

func newRedactor(hash bool, hide Hidden) (r redactor) {
	r.hide = hide
	if hash {
		r.key = make([]byte, 32)
		_, _ = rand.Read(r.key) // never fails
	}
	return r
}

// path returns a path as it is shown.
func (r redactor) path(p string) string {
	if p = r.hide.Path(p); r.key == nil {
		return p
	}
	parts := strings.Split(p, "/")
	for i, name := range parts {
		if name == "" || name == "***" || i == 0 && name == unknownAbove {
			continue
		}
		h := hmac.New(sha256.New, r.key)
		h.Write([]byte(name))
		parts[i] = hex.EncodeToString(h.Sum(nil)[:4])
	}
	return strings.Join(parts, "/")
}
