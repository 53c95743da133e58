package admin

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/ratelimit"
	"github.com/rdmabridge/rdmabridge/internal/status"
)

const (
	// fresh is how long a document answers every request for it. A reader at a screen does not see
	// the difference.
	fresh = 200 * time.Millisecond
	// stale is how long a document may answer when more are asked for than may be made.
	stale = 5 * time.Second
	// makeEvery and makeBurst bound how many documents are made: twenty at once, and then ten a
	// second, which is two for each of the five pages that may show different clients at a time.
	makeEvery = 100 * time.Millisecond
	makeBurst = 20
	// mostKept bounds how many documents are kept, each for another query.
	mostKept = 16
	// mostShared is the most clients of a document that is kept. Longer ones are for programs.
	mostShared = 1000
)

// documents makes documents and shares them among those who ask at about the same time. It is safe
// for concurrent use.
type documents struct {
	make func(status.Query) *status.Document

	mu    sync.Mutex // guards the fields below, and is held while a document is made
	kept  map[status.Query]*shared
	meter ratelimit.Meter // of the documents that were made
}

// A shared is a document with its encodings.
type shared struct {
	*status.Document
	made time.Time

	mu      sync.Mutex // guards encoded; a leaf
	encoded map[string]*body
}

// A body is a part of a document as JSON.
type body struct{ plain, gzipped []byte }

func (d *documents) init(mk func(status.Query) *status.Document) {
	d.make, d.kept = mk, make(map[status.Query]*shared)
}

// get returns the document that q asks for, or nil if too many were asked for.
func (d *documents) get(q status.Query) *shared {
	if q.Clients == 0 {
		q.Clients = q.Most()
	}
	if q.Sort == "" {
		q.Sort = status.SortWaiting
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	have := d.kept[q]
	if have != nil && now.Sub(have.made) < fresh {
		return have
	}
	if !d.meter.Take(ratelimit.At(now), int64(makeEvery), int64(makeBurst*makeEvery)) {
		if have != nil && now.Sub(have.made) < stale {
			return have
		}
		return nil
	}
	d.forget(now)
	s := &shared{Document: d.make(q), made: now, encoded: make(map[string]*body)}
	if q.Most() <= mostShared {
		d.kept[q] = s
	}
	return s
}

// forget removes what is too old to answer with, and the oldest document if there are too many. The
// caller holds d.mu.
func (d *documents) forget(now time.Time) {
	var oldest *status.Query
	for q, s := range d.kept {
		if now.Sub(s.made) >= stale {
			delete(d.kept, q)
		} else if oldest == nil || s.made.Before(d.kept[*oldest].made) {
			oldest = &q
		}
	}
	if len(d.kept) >= mostKept {
		delete(d.kept, *oldest)
	}
}

// encode returns the part of s that choose selects as JSON. Requests with one name get the same.
func (s *shared) encode(name string, choose func(*status.Document) any) (*body, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.encoded[name]; b != nil {
		return b, nil
	}
	plain, err := json.Marshal(choose(s.Document))
	if err != nil {
		return nil, err
	}
	b := &body{plain: append(plain, '\n')}
	if len(b.plain) >= 1400 { // less fits one segment anyway
		var z bytes.Buffer
		zw, _ := gzip.NewWriterLevel(&z, gzip.BestSpeed)
		_, err = zw.Write(b.plain)
		if err2 := zw.Close(); err != nil || err2 != nil {
			return nil, err
		}
		b.gzipped = z.Bytes()
	}
	s.encoded[name] = b
	return b, nil
}
