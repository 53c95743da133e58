// Package journal keeps the last lines of the log in memory, so that the status page and the command
// line can show what happened without the file or the service manager that has the log.
//
// # Bounds
//
// A Journal has at most Size events, and each event at most a few KiB, whatever a peer can bring into a
// line. A line that says the same as an event in the Journal makes that event new and counts it, so that
// a peer that is refused all day is one event. When the Journal is full, the oldest event of the kind
// that has the most goes first: many refusals do not drive out the one reload.
package journal

import (
	"sync"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/status"
)

// Size is how many events a Journal keeps.
const Size = 256

// A Journal keeps events. It is safe for concurrent use.
type Journal struct {
	now func() time.Time

	mu   sync.Mutex // guards list; a leaf: call nothing while holding it
	list []entry    // the oldest first
}

// An entry is one event and what makes it the same as another.
type entry struct {
	status.Event
	subject string
}

// New returns an empty Journal.
func New() *Journal { return &Journal{now: time.Now} }

// Add records a line of the log, which is a JSON object as zerolog writes it. It borrows line. It
// ignores what is no such line.
func (j *Journal) Add(line []byte) {
	e, ok := parse(line)
	if !ok {
		return
	}
	if e.Time.IsZero() {
		e.Time = j.now()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.list {
		if old := &j.list[i]; old.subject == e.subject && old.Level == e.Level {
			e.Repeated += old.Repeated + 1
			j.remove(i)
			break
		}
	}
	if len(j.list) == Size {
		j.remove(j.oldestOfMost())
	}
	j.list = append(j.list, e)
}

// remove removes the event at i.
func (j *Journal) remove(i int) {
	copy(j.list[i:], j.list[i+1:])
	j.list[len(j.list)-1] = entry{}
	j.list = j.list[:len(j.list)-1]
}

// oldestOfMost returns the place of the oldest event of the kind that has the most.
func (j *Journal) oldestOfMost() int {
	counts := make(map[string]int)
	most := 0
	for i := range j.list {
		kind := j.list[i].Event.Event
		counts[kind]++
		most = max(most, counts[kind])
	}
	for i := range j.list {
		if counts[j.list[i].Event.Event] == most {
			return i
		}
	}
	return 0
}

// Events returns the events, the newest first. The caller must not change their fields.
func (j *Journal) Events() []status.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	events := make([]status.Event, 0, len(j.list))
	for i := len(j.list) - 1; i >= 0; i-- {
		events = append(events, j.list[i].Event)
	}
	return events
}
