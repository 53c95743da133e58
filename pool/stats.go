package pool

import "time"

// Stats describe a pool at one moment.
type Stats struct {
	Name        string
	Connections []SeatStats
	Usable      int       // connections that are up
	Asleep      int       // seats that sleep, because the pool does not need their connections; 0 before Start
	Granted     int       // credits of the usable connections
	Outstanding int       // Calls on the usable connections
	Queued      int       // Calls that wait
	Retired     int       // replaced connections that still have Calls
	DownSince   time.Time // zero while a connection is up, or all seats sleep
}

// Sleeps reports whether there is no connection because none is needed. If st adds up several pools,
// one of them that sleeps is enough.
func (st *Stats) Sleeps() bool { return st.Usable == 0 && st.Asleep > 0 && st.DownSince.IsZero() }

// Busy reports whether the pool has a Call, waiting or outstanding. It does not see the Calls in a
// Batch.
func (p *Pool) Busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.n > 0 || p.outstanding > 0
}

// SeatStats describe a seat at one moment.
type SeatStats struct {
	Endpoint    string
	Up          bool
	Asleep      bool // the pool does not need the connection
	Granted     int
	Outstanding int
	Since       time.Time
	LastError   string
}

// Stats returns the present state of the pool.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Name: p.opts.Name, Queued: p.queue.n, Retired: len(p.retired), DownSince: p.since}
	started := p.ctx != nil
	for _, s := range p.seats {
		ss := SeatStats{Endpoint: s.endpoint, Up: s.member != nil, Asleep: s.asleep && started, Granted: s.grant, Outstanding: s.inUse, Since: s.since}
		if s.lastErr != nil {
			ss.LastError = s.lastErr.Error()
		}
		if ss.Asleep {
			st.Asleep++
		}
		if ss.Up {
			st.Usable++
			st.Granted += s.grant
			st.Outstanding += s.inUse
		}
		st.Connections = append(st.Connections, ss)
	}
	return st
}
