package tap

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/internal/names"
	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
	"github.com/rdmabridge/rdmabridge/proxy/observe"
)

// Options say what a capture has. The zero Options ask for all Calls, without the data of READs and
// WRITEs, until the reader goes away.
type Options struct {
	Clients    []netip.Prefix // of which clients
	Listeners  []string
	Upstreams  []string
	Programs   []uint32
	Operations []string // in capital letters, such as READ
	Legs       []string // clients, upstreams; empty for both

	Place names.Filter // where the file is that a Call uses first; it needs who knows names, and the end of the Call

	// Statuses and Slower need the Reply: the messages of a Call are held back until it is over.
	Statuses []string
	Slower   time.Duration

	Payload bool // data of READs and WRITEs are captured
	Snap    int  // most octets captured of a message; 0: DefaultSnap, or all with Payload

	Count    int           // Calls after which the capture ends; 0: no end
	Duration time.Duration // after which the capture ends; 0: no end
	Buffer   int64         // octets of memory; 0: DefaultBuffer

	Trigger Trigger
}

// A Trigger holds all messages back until something happens.
type Trigger struct {
	Statuses   []string
	Slower     time.Duration
	Disconnect bool          // a connection has ended with an error
	Before     time.Duration // how much of what came before is written; 0: DefaultBefore
	After      time.Duration // how long the capture goes on; 0: it ends at once; negative: it does not end
}

// Set reports whether there is something to wait for.
func (t *Trigger) Set() bool { return len(t.Statuses) > 0 || t.Slower > 0 || t.Disconnect }

// Defaults and bounds.
const (
	DefaultSnap   = mostSegment - 4
	DefaultBuffer = 16 << 20
	DefaultBefore = 10 * time.Second
	LeastBuffer   = 1 << 20
	MostBuffer    = 1 << 30
	mostValues    = 64 // of one filter
)

// ParseOptions reads Options from the query of a URL. It reports all that is wrong.
func ParseOptions(q url.Values) (Options, error) {
	p := parser{q: q, known: map[string]bool{}}
	o := Options{
		Listeners: p.list("listener"), Upstreams: p.list("upstream"), Operations: p.list("operation"), Statuses: p.list("status"),
		Slower: p.duration("slower"), Payload: p.flag("payload"), Snap: int(p.size("snaplen")), Count: int(p.size("count")),
		Duration: p.duration("duration"), Buffer: p.size("buffer"),
	}
	for i, v := range o.Operations {
		o.Operations[i] = strings.ToUpper(v)
	}
	for _, v := range p.list("client") {
		n, err := parsePrefix(v)
		p.fail("client", v, "an address or a network such as 192.0.2.0/24", err)
		o.Clients = append(o.Clients, n)
	}
	for _, v := range p.list("program") {
		n, ok := oncrpc.ProgramByName(strings.ToLower(v))
		if !ok {
			x, err := strconv.ParseUint(v, 0, 32)
			p.fail("program", v, "a number, or rpcbind, nfs, mount, rquota, nlm, nsm or nfsacl", err)
			n = uint32(x)
		}
		o.Programs = append(o.Programs, n)
	}
	for _, v := range p.list("leg") {
		switch v {
		case "both":
		case "clients", "upstreams":
			o.Legs = append(o.Legs, v)
		default:
			p.fail("leg", v, "clients, upstreams or both", errValue)
		}
	}
	for _, v := range p.list("trigger") {
		what, value, _ := strings.Cut(v, "=")
		switch {
		case what == "status" && value != "":
			o.Trigger.Statuses = append(o.Trigger.Statuses, value)
		case what == "slower":
			d, err := time.ParseDuration(value)
			if err == nil && d <= 0 {
				err = errValue
			}
			p.fail("trigger", v, "a time, such as slower=1s", err)
			o.Trigger.Slower = d
		case v == "disconnect":
			o.Trigger.Disconnect = true
		default:
			p.fail("trigger", v, "status=NAME, slower=DURATION or disconnect", errValue)
		}
	}
	o.Trigger.Before = p.duration("before")
	if q.Get("after") == "forever" {
		o.Trigger.After, p.known["after"] = -1, true
	} else {
		o.Trigger.After = p.duration("after")
	}
	var err error
	if o.Place, err = names.NewFilter(p.values("export"), p.values("path")); err != nil {
		p.errs = append(p.errs, fmt.Errorf("path: %w", err))
	}
	for k := range q {
		if !p.known[k] {
			p.errs = append(p.errs, fmt.Errorf("%s: no such parameter", k))
		}
	}
	if len(p.errs) > 0 {
		return Options{}, errors.Join(p.errs...)
	}
	return o, o.check()
}

// check reports what cannot work together.
func (o *Options) check() error {
	for what, list := range map[string]int{
		"client": len(o.Clients), "listener": len(o.Listeners), "upstream": len(o.Upstreams), "program": len(o.Programs),
		"operation": len(o.Operations), "status": len(o.Statuses), "trigger": len(o.Trigger.Statuses),
	} {
		if list > mostValues {
			return fmt.Errorf("%s: %d values are too many; write %d or fewer", what, list, mostValues)
		}
	}
	switch {
	case o.Buffer != 0 && (o.Buffer < LeastBuffer || o.Buffer > MostBuffer):
		return fmt.Errorf("buffer: %d octets are not possible; write 1MiB to 1GiB, which are %d to %d octets", o.Buffer, LeastBuffer, MostBuffer)
	case !o.Trigger.Set() && (o.Trigger.Before != 0 || o.Trigger.After != 0):
		return errors.New("before and after need a trigger; write one, such as slower=1s")
	}
	return nil
}

// withDefaults fills in the defaults.
func (o Options) withDefaults() Options {
	if o.Snap == 0 && !o.Payload {
		o.Snap = DefaultSnap
	}
	if o.Buffer == 0 {
		o.Buffer = DefaultBuffer
	}
	if o.Trigger.Before == 0 {
		o.Trigger.Before = DefaultBefore
	}
	return o
}

var errValue = errors.New("not one of these")

func parsePrefix(v string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(v); err == nil {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	n, err := netip.ParsePrefix(v)
	return n.Masked(), err
}

// A parser reads parameters, and collects what is wrong.
type parser struct {
	q     url.Values
	known map[string]bool
	errs  []error
}

func (p *parser) fail(name, value, want string, err error) {
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("%s: %q is not possible here; write %s", name, value, want))
	}
}

// values returns the values of a parameter that may be there several times.
func (p *parser) values(name string) []string {
	p.known[name] = true
	if len(p.q[name]) > mostValues {
		p.errs = append(p.errs, fmt.Errorf("%s: %d values are too many; write %d or fewer", name, len(p.q[name]), mostValues))
	}
	return p.q[name]
}

// list returns the values of a parameter that may be there several times and have several, divided by commas.
func (p *parser) list(name string) []string {
	p.known[name] = true
	var all []string
	for _, v := range p.q[name] {
		for _, s := range strings.Split(v, ",") {
			if s = strings.TrimSpace(s); s != "" {
				all = append(all, s)
			}
		}
	}
	return all
}

func (p *parser) duration(name string) time.Duration {
	p.known[name] = true
	v := p.q.Get(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	if err == nil && d < 0 {
		err = errValue
	}
	p.fail(name, v, "a duration such as 100ms", err)
	return d
}

func (p *parser) size(name string) int64 {
	p.known[name] = true
	v := p.q.Get(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err == nil && n < 0 {
		err = errValue
	}
	p.fail(name, v, "a number, 0 or more", err)
	return min(n, math.MaxInt32)
}

func (p *parser) flag(name string) bool {
	p.known[name] = true
	switch v := p.q.Get(name); v {
	case "", "0", "false":
		return false
	case "1", "true":
		return true
	default:
		p.fail(name, v, "true or false", errValue)
		return false
	}
}

// wants reports whether the capture has c, as far as can be told when the Call is read.
func (o *Options) wants(c *observe.TapCall) bool {
	if c.Reverse {
		return o.wantsReverse(c)
	}
	return o.hasClient(c.Client.Addr()) && has(o.Listeners, c.Listener) && has(o.Upstreams, c.Upstream) &&
		(len(o.Programs) == 0 || slices.Contains(o.Programs, c.Program)) &&
		(len(o.Operations) == 0 || slices.Contains(o.Operations, strings.ToUpper(c.Operation)))
}

// wantsReverse decides about a message of the reverse direction. It is captured on each leg for itself:
// a filter that needs the other leg, or the Reply, leaves it out.
func (o *Options) wantsReverse(c *observe.TapCall) bool {
	if len(o.Operations) > 0 || o.needFate() ||
		len(o.Programs) > 0 && !slices.Contains(o.Programs, oncrpc.ProgramNFS) && !slices.Contains(o.Programs, oncrpc.ProgramCallbacks) {
		return false
	}
	if c.Leg == observe.TapClients {
		return o.hasClient(c.Client.Addr()) && has(o.Listeners, c.Listener) && len(o.Upstreams) == 0
	}
	return has(o.Upstreams, c.Upstream) && len(o.Clients) == 0 && len(o.Listeners) == 0
}

func has(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }

func (o *Options) hasClient(a netip.Addr) bool {
	return len(o.Clients) == 0 || slices.ContainsFunc(o.Clients, func(n netip.Prefix) bool { return n.Contains(a.Unmap()) })
}

// leg reports whether the capture has messages of a leg.
func (o *Options) leg(l observe.TapLeg) bool {
	return len(o.Legs) == 0 || slices.Contains(o.Legs, legName(l))
}

func legName(l observe.TapLeg) string {
	if l == observe.TapClients {
		return "clients"
	}
	return "upstreams"
}

// needFate reports whether what is known when a Call is over decides whether the capture has it.
func (o *Options) needFate() bool { return len(o.Statuses) > 0 || o.Slower > 0 || o.Place.Set() }
