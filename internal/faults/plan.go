package faults

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/rdmabridge/rdmabridge/internal/rpc/oncrpc"
)

// The bounds of a Plan.
const (
	maxPlan  = 1 << 20 // octets of the file
	maxRules = 256
	maxDelay = time.Hour
)

// A Plan is what the server does to its clients.
type Plan struct {
	// Seed makes the random numbers. Two runs with one seed that get the same Calls in the same order
	// inject the same faults. 0 stands for a random one.
	Seed  uint64 `yaml:"seed"`
	Rules []Rule `yaml:"rules"`
}

// A Rule says which fault strikes which Calls, or which connections.
type Rule struct {
	Name  string `yaml:"name"`  // for the log; the fault and the rule's number if it is empty
	Fault string `yaml:"fault"` // the name of a Kind
	Match Match  `yaml:"match"`

	// Of the Calls that match: the first After are left alone, and of the others every Every-th is
	// struck (1), with the Probability (1), until Count were (0: no limit).
	After       uint64   `yaml:"after"`
	Every       uint64   `yaml:"every"`
	Probability *float64 `yaml:"probability"`
	Count       uint64   `yaml:"count"`
	// From and Until bound the time of the Call since the start of the server. 0: no bound.
	From  Duration `yaml:"from"`
	Until Duration `yaml:"until"`

	// Settings of the fault; each fault takes some of them.
	Delay   Duration `yaml:"delay"`
	Jitter  Duration `yaml:"jitter"`
	Replies int      `yaml:"replies"`
	Octets  int      `yaml:"octets"`
	Credits *uint32  `yaml:"credits"`
	Low     uint32   `yaml:"low"`
	High    uint32   `yaml:"high"`
	Value   *uint32  `yaml:"value"`
	Error   string   `yaml:"error"`
	How     string   `yaml:"how"`
	Where   string   `yaml:"where"`

	kind    *Kind
	program uint32
	client  netip.Prefix
}

// A Match selects Calls. An empty field matches all.
type Match struct {
	Transport  string   `yaml:"transport"` // tcp or rdma
	Client     string   `yaml:"client"`    // an address or a prefix
	Program    string   `yaml:"program"`   // a short name or a number
	Versions   []uint32 `yaml:"versions"`
	Operations []string `yaml:"operations"` // READ matches the procedure of NFSv3 and the COMPOUND whose main operation it is
	MinLength  int      `yaml:"min_length"` // octets of the Call
}

// A Duration is a time.Duration that YAML can hold: 100ms.
type Duration time.Duration

// UnmarshalYAML is what the package yaml decodes with. It puts the line before the error.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode || v < 0 || v > maxDelay {
		return fmt.Errorf("%q: want a time from 0s to %s, such as 100ms", n.Value, maxDelay)
	}
	*d = Duration(v)
	return nil
}

// LoadFile reads a Plan.
func LoadFile(path string) (*Plan, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--faults: %w; name a file of rules, as docs/fault-server.md has them", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxPlan+1))
	if err != nil {
		return nil, fmt.Errorf("faults: %w", err)
	}
	p, err := Load(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// inFile are the words of package yaml about what it has found, and where that belongs in Go.
var inFile = regexp.MustCompile(`cannot construct !!\w+ (\S+) into \S+|field (\S+) not found in type \S+`)

// Load parses a Plan and checks it. The error names every rule that is wrong.
func Load(text []byte) (*Plan, error) {
	if len(text) > maxPlan {
		return nil, fmt.Errorf("the file is longer than %d octets; write a shorter one", maxPlan)
	}
	p := new(Plan)
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(p); err != nil && !errors.Is(err, io.EOF) {
		text := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "construct errors: ")
		return nil, fmt.Errorf("%s; write rules as docs/fault-server.md has them", inFile.ReplaceAllString(text, "$1$2 does not belong here"))
	}
	if len(p.Rules) == 0 {
		return nil, errors.New("there are no rules; write a list `rules`, each with a `fault`")
	}
	if len(p.Rules) > maxRules {
		return nil, fmt.Errorf("%d rules are too many; write %d at most", len(p.Rules), maxRules)
	}
	var errs []error
	for i := range p.Rules {
		if err := p.Rules[i].check(i); err != nil {
			errs = append(errs, fmt.Errorf("rules[%d]: %w", i, err))
		}
	}
	return p, errors.Join(errs...)
}

// check completes the rule with index i, and returns what is wrong with it.
func (r *Rule) check(i int) error {
	if r.kind = kindByName(r.Fault); r.kind == nil {
		var names []string
		for _, k := range Kinds {
			names = append(names, k.Name)
		}
		return fmt.Errorf("fault %q: want one of %s", r.Fault, strings.Join(names, ", "))
	}
	if r.Name == "" {
		r.Name = fmt.Sprintf("%s-%d", r.Fault, i+1)
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, s := range []struct {
		name string
		set  bool
	}{
		{"delay", r.Delay != 0},
		{"jitter", r.Jitter != 0},
		{"replies", r.Replies != 0},
		{"octets", r.Octets != 0},
		{"credits", r.Credits != nil},
		{"low", r.Low != 0},
		{"high", r.High != 0},
		{"value", r.Value != nil},
		{"error", r.Error != ""},
		{"how", r.How != ""},
		{"where", r.Where != ""},
	} {
		if s.set && !slices.Contains(r.kind.Takes, s.name) {
			wrong("%s takes no `%s`; it takes %s", r.Fault, s.name, cmp.Or(strings.Join(r.kind.Takes, ", "), "no settings"))
		}
	}
	r.setDefaults()
	if r.Replies < 0 || r.Replies > 64 {
		wrong("replies %d: want 1 to 64", r.Replies)
	}
	if r.Octets < 0 || r.Octets > 1<<20 {
		wrong("octets %d: want 1 to 1048576", r.Octets)
	}
	if r.Fault == delay && r.Delay == 0 && r.Jitter == 0 {
		wrong("want a `delay`")
	}
	if r.Fault == freeze && r.Delay == 0 {
		wrong("want a `delay`: how long the connection is silent")
	}
	if p := r.Probability; p != nil && !(*p >= 0 && *p <= 1) {
		wrong("probability %v: want 0 to 1", *p)
	}
	if r.Until != 0 && r.Until <= r.From {
		wrong("until %v is not after from %v", time.Duration(r.Until), time.Duration(r.From))
	}
	if r.Fault == rpcError && rpcErrors[r.Error] == nil {
		wrong("error %q: want SYSTEM_ERR, GARBAGE_ARGS, PROC_UNAVAIL, PROG_UNAVAIL, AUTH_BADCRED, AUTH_REJECTEDCRED, or AUTH_TOOWEAK", r.Error)
	}
	if hows := map[string][]string{cut: {"reset", "close"}, refuse: {"reject", "reset"}}[r.Fault]; hows != nil && !slices.Contains(hows, r.How) {
		wrong("how %q: want %s", r.How, strings.Join(hows, " or "))
	}
	if r.Fault == wrongXID && !slices.Contains([]string{"both", "header", "payload"}, r.Where) {
		wrong("where %q: want both, header, or payload", r.Where)
	}
	if err := r.checkMatch(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// setDefaults sets the settings that are not in the file.
func (r *Rule) setDefaults() {
	def := func(v *Duration, fault string, d time.Duration) {
		if r.Fault == fault && *v == 0 {
			*v = Duration(d)
		}
	}
	def(&r.Delay, reorder, 100*time.Millisecond)
	def(&r.Delay, hangConnect, time.Minute)
	def(&r.Delay, lateWrite, 50*time.Millisecond)
	if slices.Contains(r.kind.Takes, "octets") && r.Octets == 0 {
		r.Octets = 4
		switch r.Fault {
		case cut, shortHeader:
			r.Octets = 20
		case fragments:
			r.Octets = 100
		}
	}
	if r.Fault == reorder && r.Replies == 0 {
		r.Replies = 1
	}
	if r.Credits == nil {
		r.Credits = new(uint32)
	}
	if r.Fault == errVers && r.Low == 0 && r.High == 0 {
		r.Low, r.High = 2, 2
	}
	if r.Value == nil {
		v := uint32(2)
		if r.Fault == badProcedure {
			v = 9
		}
		r.Value = &v
	}
	switch r.Fault {
	case rpcError:
		r.Error = cmp.Or(r.Error, "SYSTEM_ERR")
	case cut:
		r.How = cmp.Or(r.How, "reset")
	case refuse:
		r.How = cmp.Or(r.How, "reject")
	case wrongXID:
		r.Where = cmp.Or(r.Where, "both")
	}
	if r.Every == 0 {
		r.Every = 1
	}
}

// checkMatch completes r.Match.
func (r *Rule) checkMatch() error {
	var errs []error
	m := &r.Match
	switch m.Transport {
	case "", r.kind.Transport.String():
	case "tcp", "rdma":
		if r.kind.Transport != overBoth {
			errs = append(errs, fmt.Errorf("match.transport %s: %s is a fault of %s", m.Transport, r.Fault, r.kind.Transport))
		}
	default:
		errs = append(errs, fmt.Errorf("match.transport %q: want tcp or rdma", m.Transport))
	}
	if r.kind.stage == atConnect && (m.Program != "" || m.Versions != nil || m.Operations != nil || m.MinLength != 0) {
		errs = append(errs, fmt.Errorf("%s strikes connections, which have no program and no operation", r.Fault))
	}
	if m.Program != "" {
		n, ok := oncrpc.ProgramByName(m.Program)
		if v, err := strconv.ParseUint(m.Program, 10, 32); err == nil {
			n, ok = uint32(v), true
		}
		if !ok {
			errs = append(errs, fmt.Errorf("match.program %q: want a number, or a name such as nfs", m.Program))
		}
		r.program = n
	}
	if m.Client != "" {
		p, err := netip.ParsePrefix(m.Client)
		if a, e := netip.ParseAddr(m.Client); e == nil {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("match.client %q: want an address or a prefix", m.Client))
		}
		r.client = p.Masked()
	}
	return errors.Join(errs...)
}

// matches reports whether the rule applies to the Call, or to a connection if the rule's fault
// strikes those.
func (r *Rule) matches(c *incident) bool {
	m := &r.Match
	switch {
	case c.transport&r.kind.Transport == 0,
		m.Transport != "" && m.Transport != c.transport.String(),
		r.client.IsValid() && !r.client.Contains(c.peer.Unmap()),
		(r.kind.stage == atConnect) != c.connection,
		m.Program != "" && r.program != c.program,
		m.Versions != nil && !slices.Contains(m.Versions, c.version),
		m.MinLength > c.length,
		c.since < time.Duration(r.From),
		r.Until != 0 && c.since >= time.Duration(r.Until):
		return false
	}
	switch r.kind.chunks {
	case "any":
		if !c.write && !c.reply {
			return false
		}
	case "write":
		if !c.write {
			return false
		}
	}
	if m.Operations == nil {
		return true
	}
	_, main, _ := strings.Cut(c.operation, "/")
	return slices.ContainsFunc(m.Operations, func(s string) bool {
		return strings.EqualFold(s, c.operation) || main != "" && strings.EqualFold(s, main)
	})
}
