package sizing

import (
	"math/rand/v2"
	"time"
)

// A Fleet is what Simulate simulates: clients that each have a number of Calls under way, one after the other in each
// of their slots; bridges with credits; and servers with threads. A client has its files on one server.
type Fleet struct {
	Seed             uint64
	Clients, Bridges int
	Slots            int           // Calls that a client has under way at most
	Think            time.Duration // the mean time between the Reply and the next Call in a slot
	Servers, Threads int           // and the threads of each
	Service          time.Duration // the mean time that a thread needs for a Call
	Credits          int           // of each bridge at each server
	Shared           bool          // all servers are file systems of one storage, and share the bridge's credits for it
	Share            bool          // the bridges divide credits among clients as docs/memory.md says
	AcceptRate       float64       // connections a second that a bridge accepts
	SlowStart        bool          // after the loss of its connections a bridge sends 16 Calls, and one more for each Reply
	Run              time.Duration

	Lost      int           // bridges that end at FailAt, and do not come back
	Server    bool          // server 0 fails at FailAt
	FailAt    time.Duration //
	FailFor   time.Duration // how long server 0 is away
	Backoff   time.Duration // the longest pause of a bridge between two attempts to connect
	CallLimit time.Duration // timeouts.call: a credit that a Call holds at a server that hangs is given back
}

// A Result is what a simulation has seen.
type Result struct {
	Answered     int              // Calls
	Before       float64          // Calls a second in the two seconds before FailAt
	After        float64          // the same in the last two seconds
	Least        float64          // the least of any second after FailAt
	Healthy      float64          // Calls a second of clients of other servers than the one that fails, in the five seconds from 15 s after FailAt
	HealthyUsual float64          // the same in the two seconds before FailAt
	Back         time.Duration    // after FailAt, until another bridge has accepted every client of a lost one
	MostClients  int              // of one bridge
	MostQueued   int              // Calls that waited for a credit at one bridge
	MostAtServer int              // Calls that waited for a thread at one server
	MostConnect  float64          // clients that connected to one bridge within a second
	Waits        [4]time.Duration // median, 99 %, 99.9 % and longest wait for the Reply after FailAt
}

const (
	answeredLately = 10 * time.Second // a client without a Reply for that long has one Call under way only
	silent         = 4 * time.Second  // timeouts.silent: when a bridge gives up its connections to a server that is away
)

type eventKind uint8

const (
	evCall    eventKind = iota // a slot has its next Call
	evDone                     // a thread has finished a Call
	evExpire                   // a Call has held its credit for CallLimit
	evConnect                  // a client of a lost bridge tries again
	evAccept                   // and is accepted
	evFail
	evSilent // bridges notice that the server is away
	evBack
	evDial // a bridge has connected to the server again
)

type event struct {
	at   time.Duration
	id   int32 // of a slot, a client or a bridge
	gen  uint32
	kind eventKind
}

type slotState uint8

const (
	thinking slotState = iota
	waiting            // for a credit, or at its client's limit
	sent
	away // its client is not connected
)

type slot struct {
	begun time.Duration
	gen   uint32 // counts its Calls and failures: events of earlier ones say nothing
	state slotState
}

type client struct {
	lastReply time.Duration
	parked    []int32 // slots that may not have a credit now
	bridge    int32
	underWay  int32
}

type credits struct {
	used, window int32 // window is Credits, or less in a slow start
	down         bool
	queue        fifo
}

type bridge struct {
	pools   []credits
	next    time.Duration // when it accepts the next connection
	second  time.Duration
	connect int // connections within this second
	clients int
	dead    bool
}

type server struct {
	busy  int
	away  bool
	queue fifo // of slots and their gen
}

// simulation is one run. Everything happens in order in one goroutine, and chance comes from the seed.
type simulation struct {
	f       Fleet
	r       *rand.Rand
	now     time.Duration
	heap    []event
	slots   []slot
	clients []client
	bridges []bridge
	servers []server
	live    []int32
	res     Result
	waits   []time.Duration
	seconds []int // Calls answered in each second of the run
	healthy []int
}

// Simulate runs f. Equal fleets have equal results.
func Simulate(f Fleet) Result {
	s := &simulation{f: f, r: rand.New(rand.NewPCG(f.Seed, 17))}
	s.start()
	for len(s.heap) > 0 && s.heap[0].at < f.Run {
		e := s.pop()
		s.now = e.at
		s.handle(e)
	}
	return s.result()
}

func (s *simulation) start() {
	f := &s.f
	pools := f.Servers
	if f.Shared {
		pools = 1
	}
	s.bridges = make([]bridge, f.Bridges)
	for i := range s.bridges {
		s.bridges[i].pools = make([]credits, pools)
		for j := range s.bridges[i].pools {
			s.bridges[i].pools[j].window = int32(f.Credits)
		}
		s.live = append(s.live, int32(i))
	}
	s.servers = make([]server, f.Servers)
	s.clients = make([]client, f.Clients)
	s.slots = make([]slot, f.Clients*f.Slots)
	s.seconds = make([]int, int(f.Run/time.Second)+1)
	s.healthy = make([]int, len(s.seconds))
	for i := range s.clients {
		s.assign(int32(i))
	}
	for i := range s.slots {
		s.push(event{at: s.chance(f.Think), id: int32(i), kind: evCall})
	}
	s.push(event{at: f.FailAt, kind: evFail})
}

// assign gives a client one of the bridges that are there, as a balancer does that hashes addresses.
func (s *simulation) assign(c int32) {
	b := s.live[s.r.IntN(len(s.live))]
	s.clients[c].bridge = b
	s.bridges[b].clients++
	s.res.MostClients = max(s.res.MostClients, s.bridges[b].clients)
}

// chance is an exponentially distributed time.
func (s *simulation) chance(mean time.Duration) time.Duration {
	return time.Duration(s.r.ExpFloat64() * float64(mean))
}

func (s *simulation) clientOf(i int32) int32 { return i / int32(s.f.Slots) }
func (s *simulation) serverOf(c int32) int32 { return c % int32(s.f.Servers) }

func (s *simulation) pool(c int32) *credits {
	b := &s.bridges[s.clients[c].bridge]
	if s.f.Shared {
		return &b.pools[0]
	}
	return &b.pools[s.serverOf(c)]
}

func (s *simulation) handle(e event) {
	switch e.kind {
	case evCall:
		if x := &s.slots[e.id]; x.gen == e.gen && x.state == thinking {
			x.begun, x.state = s.now, waiting
			s.enqueue(e.id)
		}
	case evDone:
		s.done(e)
	case evExpire:
		s.expire(e)
	case evConnect:
		s.accept(e.id)
	case evAccept:
		s.res.Back = s.now - s.f.FailAt
		for i := e.id * int32(s.f.Slots); i < (e.id+1)*int32(s.f.Slots); i++ {
			if s.slots[i].state == away {
				s.slots[i].state = waiting
				s.enqueue(i)
			}
		}
	case evFail:
		s.fail()
	case evSilent:
		s.lose()
	case evBack:
		s.servers[0].away = false
		for b := range s.bridges {
			// Each bridge is somewhere in its pause.
			s.push(event{at: s.now + time.Duration(s.r.Float64()*float64(s.f.Backoff)), id: int32(b), kind: evDial})
		}
	case evDial:
		p := &s.bridges[e.id].pools[0]
		p.down = false
		p.used = 0
		if s.f.SlowStart {
			p.window = min(16, int32(s.f.Credits))
		}
		s.feed(p)
	}
}

// enqueue lets a Call wait for a credit.
func (s *simulation) enqueue(i int32) {
	p := s.pool(s.clientOf(i))
	p.queue.push(entry{i, s.slots[i].gen})
	s.feed(p)
	s.res.MostQueued = max(s.res.MostQueued, p.queue.len())
}

// feed sends Calls as far as there are credits.
func (s *simulation) feed(p *credits) {
	for !p.down && p.used < p.window && p.queue.len() > 0 {
		e := p.queue.pop()
		x := &s.slots[e.id]
		if x.gen != e.gen || x.state != waiting {
			continue
		}
		c := s.clientOf(e.id)
		if s.f.Share && !s.mayHave(c, p) {
			s.clients[c].parked = append(s.clients[c].parked, e.id)
			continue
		}
		p.used++
		s.clients[c].underWay++
		x.state = sent
		s.serve(e)
	}
}

// mayHave has the rules of docs/memory.md, "The share of credits", as far as they matter here.
func (s *simulation) mayHave(c int32, p *credits) bool {
	x := &s.clients[c]
	lately := s.now-x.lastReply < answeredLately
	if p.used >= p.window-p.window/8 { // the last eighth
		return lately && x.underWay == 0
	}
	return x.underWay == 0 || lately
}

func (s *simulation) serve(e entry) {
	n := s.serverOf(s.clientOf(e.id))
	v := &s.servers[n]
	if n == 0 && s.f.Server && v.away {
		if s.f.CallLimit > 0 {
			s.push(event{at: s.now + s.f.CallLimit, id: e.id, gen: e.gen, kind: evExpire})
		}
		return // nobody answers it
	}
	if v.busy < s.f.Threads {
		v.busy++
		s.push(event{at: s.now + s.chance(s.f.Service), id: e.id, gen: e.gen, kind: evDone})
		return
	}
	v.queue.push(e)
	s.res.MostAtServer = max(s.res.MostAtServer, v.queue.len())
}

func (s *simulation) done(e event) {
	c := s.clientOf(e.id)
	v := &s.servers[s.serverOf(c)]
	if s.serverOf(c) == 0 && v.away {
		return // the server has gone with its Calls
	}
	if v.queue.len() > 0 {
		next := v.queue.pop()
		s.push(event{at: s.now + s.chance(s.f.Service), id: next.id, gen: next.gen, kind: evDone})
	} else {
		v.busy--
	}
	x := &s.slots[e.id]
	if x.gen != e.gen || x.state != sent {
		return // its bridge has ended: the server has worked for nothing
	}
	p := s.pool(c)
	p.used = max(0, p.used-1)
	if p.window < int32(s.f.Credits) {
		p.window++
	}
	s.answered(e.id, c)
	s.feed(p)
}

func (s *simulation) answered(i, c int32) {
	x, k := &s.slots[i], &s.clients[c]
	k.underWay--
	k.lastReply = s.now
	s.res.Answered++
	s.seconds[s.now/time.Second]++
	if s.serverOf(c) != 0 {
		s.healthy[s.now/time.Second]++
	}
	if s.now > s.f.FailAt {
		s.waits = append(s.waits, s.now-x.begun)
	}
	x.state = thinking
	x.gen++
	s.push(event{at: s.now + s.chance(s.f.Think), id: i, gen: x.gen, kind: evCall})
	s.unpark(c)
}

func (s *simulation) unpark(c int32) {
	k := &s.clients[c]
	if len(k.parked) == 0 {
		return
	}
	p := s.pool(c)
	for _, i := range k.parked {
		p.queue.push(entry{i, s.slots[i].gen})
	}
	k.parked = k.parked[:0]
}

// expire gives the credit of a Call back that a server does not answer. The client sends it again.
func (s *simulation) expire(e event) {
	x := &s.slots[e.id]
	if x.gen != e.gen || x.state != sent {
		return
	}
	c := s.clientOf(e.id)
	p := s.pool(c)
	p.used = max(0, p.used-1)
	s.clients[c].underWay--
	x.gen++
	x.state = waiting
	s.unpark(c)
	s.enqueue(e.id)
}

func (s *simulation) fail() {
	for i := range s.f.Lost {
		s.bridges[i].dead = true
	}
	s.live = s.live[s.f.Lost:]
	if s.f.Lost > 0 {
		for c := range s.clients {
			if s.bridges[s.clients[c].bridge].dead {
				s.drop(int32(c))
				// Those that find nobody try again after three seconds; their clocks differ a little.
				s.push(event{at: s.now + clientRetry + time.Duration(s.r.IntN(int(time.Second))), id: int32(c), kind: evConnect})
			}
		}
	}
	if s.f.Server {
		s.servers[0].away = true
		s.servers[0].busy = 0
		s.servers[0].queue = fifo{}
		if !s.f.Shared {
			s.push(event{at: s.now + silent, kind: evSilent})
			s.push(event{at: s.now + s.f.FailFor, kind: evBack})
		}
	}
}

// drop ends the Calls of a client whose connection has ended.
func (s *simulation) drop(c int32) {
	for i := c * int32(s.f.Slots); i < (c+1)*int32(s.f.Slots); i++ {
		x := &s.slots[i]
		if x.state == thinking {
			continue // its Call comes when it is due
		}
		x.gen++
		x.state = away
	}
	s.clients[c].underWay = 0
	s.clients[c].parked = s.clients[c].parked[:0]
}

// accept connects a client to a bridge that is there, as fast as that bridge accepts connections.
func (s *simulation) accept(c int32) {
	s.assign(c)
	b := &s.bridges[s.clients[c].bridge]
	b.next = max(b.next, s.now) + time.Duration(float64(time.Second)/s.f.AcceptRate)
	if second := s.now / time.Second; second != b.second {
		b.second, b.connect = second, 0
	}
	b.connect++
	s.res.MostConnect = max(s.res.MostConnect, float64(b.connect))
	// What was thinking when the connection ended has sent its Call meanwhile, or waits for it as well.
	s.push(event{at: b.next, id: c, kind: evAccept})
}

// lose is what bridges do when a server has been silent: its Calls wait until it is back.
func (s *simulation) lose() {
	for b := range s.bridges {
		s.bridges[b].pools[0].down = true
		s.bridges[b].pools[0].used = 0
	}
	for i := range s.slots {
		c := s.clientOf(int32(i))
		if x := &s.slots[i]; s.serverOf(c) == 0 && x.state == sent {
			x.gen++
			x.state = waiting
			s.clients[c].underWay--
			s.enqueue(int32(i))
		}
	}
}
