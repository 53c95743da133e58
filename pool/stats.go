package pool

import "time"

// Stats describe a pool at one moment.
type Stats struct {
	Name        string
	Connections []SeatStats
	Usable      int           // connections that are up: the server has answered on them
	Asleep      int           // seats that sleep, because the pool does not need their connections; 0 before Start
	Granted     int           // credits of the usable connections
	Outstanding int           // Calls on the usable connections
	Queued      int           // Calls that wait
	Starved     time.Duration // so far: time in which Calls waited
	Retired     int           // replaced connections that still have Calls
	Leaving     []SeatStats   // replaced connections that have not ended yet
	DownSince   time.Time     // zero while a connection is up, or all seats sleep
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
	Up          bool // the server has answered, and Calls may be dispatched to it
	Asleep      bool // the pool does not need the connection
	Granted     int  // 0 unless Up is set
	Outstanding int  // Calls, also on a connection that another one has replaced
	Since       time.Time
	LastError   error  // nil for none, and once the server has answered on the next connection
	Mute        bool   // there is a connection, and the server has not answered on it yet
	Member      Member // the connection; nil for none
}

// Stats returns the present state of the pool.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := Stats{Name: p.opts.Name, Queued: p.queue.n, Starved: p.queue.waited(), Retired: len(p.retired), DownSince: p.since}
	started := p.ctx != nil
	for _, s := range p.seats {
		ss := s.stats(started)
		if ss.Asleep {
			st.Asleep++
		}
		if ss.Up {
			st.Usable++
			st.Granted += ss.Granted
			st.Outstanding += ss.Outstanding
		}
		st.Connections = append(st.Connections, ss)
	}
	for _, s := range p.retired {
		if s.open != nil {
			st.Leaving = append(st.Leaving, s.stats(started))
		}
	}
	return st
}

// stats describes s. The credits that a connection was granted count while Calls may be dispatched to it,
// and no longer: of a server that is down, all of them together are 0, and so is each.
func (s *Seat) stats(started bool) SeatStats {
	ss := SeatStats{
		Endpoint: s.endpoint, Up: s.isUp(), Asleep: s.asleep && started, Outstanding: s.inUse, Since: s.since, Member: s.open,
		LastError: s.lastErr, Mute: s.member != nil && !s.isUp(),
	}
	if ss.Up {
		ss.Granted = s.grant
	}
	return ss
}
