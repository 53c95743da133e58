package configs

import (
	"cmp"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// TestAnnotated holds rdmabridge.yaml to its first line: it shows every setting. One
// upstream, the limits and timeouts of one listener, and all of another listener are
// what a file without them would have.
func TestAnnotated(t *testing.T) {
	data, err := os.ReadFile("rdmabridge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := LoadFile("rdmabridge.yaml", testKnown())
	if err != nil {
		t.Fatal(err)
	}
	short, err := Load([]byte(minimal), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Upstreams[0], short.Upstreams[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("upstreams[0] is not all defaults:\n got %+v\nwant %+v", got, want)
	}
	if got, want := c.Listeners[0].Limits, short.Listeners[0].Limits; got != want {
		t.Errorf("listeners[0].limits are not the defaults:\n got %+v\nwant %+v", got, want)
	}
	if got, want := c.Listeners[0].Timeouts, short.Listeners[0].Timeouts; got != want {
		t.Errorf("listeners[0].timeouts are not the defaults:\n got %+v\nwant %+v", got, want)
	}
	plain, err := Load([]byte(strings.Replace(minimal, "    upstream", "    transport: rdma\n    upstream", 1)), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	got, want := c.Listeners[1], plain.Listeners[0]
	want.Name, want.Address, want.Upstream = got.Name, got.Address, got.Upstream
	if !reflect.DeepEqual(got, want) {
		t.Errorf("listeners[1] is not all defaults:\n got %+v\nwant %+v", got, want)
	}
	var all func(s *settings)
	all = func(s *settings) {
		for name, sub := range s.names {
			if !strings.Contains(string(data), name+":") {
				t.Errorf("rdmabridge.yaml does not mention %s", name)
			}
			all(sub)
		}
	}
	all(schema)
}

// TestAnnotatedDefaults holds rdmabridge.yaml to what it says about defaults: each
// setting stands there with its default, unless its comment says Required, Default X or
// Left out. It checks every setting of the file, and every default that a comment names.
func TestAnnotatedDefaults(t *testing.T) {
	data, err := os.ReadFile("rdmabridge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	onLargeMachine(t)
	shown, err := Load(data, testKnown())
	if err != nil {
		t.Fatal(err)
	}
	r := report{source: shown.source}
	comments := commentsByLine(data, r.source)
	checked := make(map[string]bool) // by path without indices
	for path, s := range settingsOfTwo(shown, bare(shown, "")) {
		if !r.source.given(path) {
			continue
		}
		checked[index.ReplaceAllString(path, "")] = true
		comment := comments[r.source.position(path).line]
		if comment == "" { // the first listener or upstream has it
			comment = comments[r.source.position(index.ReplaceAllString(path, "[0]")).line]
		}
		checkAnnotation(t, path, comment, s)
	}
	other := settingsOfTwo(bare(shown, TransportTCP), bare(shown, TransportRDMA))
	for path, s := range other {
		for _, m := range defaultWith.FindAllStringSubmatch(comments[r.source.position(path).line], -1) {
			have := s[0] // with tcp
			if m[1] == "rdma" {
				have = s[1]
			}
			if want := normal(t, path, m[2], have); want != text(have) {
				t.Errorf("rdmabridge.yaml: %s: the default with %s is %s, not %s", path, m[1], text(have), want)
			}
		}
	}
	for path := range settingsOfTwo(shown, shown) {
		// Builds without ibverbs load the file, too, so its settings stand there as comments.
		if p := index.ReplaceAllString(path, ""); !checked[p] && p != "listeners.iwarp.revision1" && !strings.Contains(p, ".ibverbs.") {
			t.Errorf("rdmabridge.yaml does not show %s", p)
		}
	}
}

var (
	defaultIs   = regexp.MustCompile(`\bDefault (\S*[^\s.,;)])`)
	defaultWith = regexp.MustCompile(`\bDefault with (tcp|rdma) (\S*[^\s.,;)])`)
)

// checkAnnotation compares a setting, s[0], with its default, s[1], and with the comment
// about it.
func checkAnnotation(t *testing.T, path, comment string, s [2]reflect.Value) {
	t.Helper()
	shown, def := text(s[0]), text(s[1])
	named := defaultIs.FindStringSubmatch(defaultWith.ReplaceAllString(comment, ""))
	switch {
	case path == "loops": // the default depends on the machine: TestDefaultLoops
	case strings.HasPrefix(comment, "Required."), strings.HasPrefix(comment, "Left out: "):
		if def != "" {
			t.Errorf("rdmabridge.yaml: %s has the default %s; its comment says %q", path, def, comment)
		}
	case named != nil:
		if want := normal(t, path, named[1], s[1]); want != def {
			t.Errorf("rdmabridge.yaml: %s: the default is %s, not %s", path, def, want)
		}
	case shown != def:
		t.Errorf("rdmabridge.yaml: %s: %s is shown, the default is %q, and the comment does not say so: %q", path, shown, def, comment)
	}
}

// normal formats value, which a comment names, as a setting of v's type formats itself.
func normal(t *testing.T, path, value string, v reflect.Value) string {
	t.Helper()
	var parsed fmt.Stringer
	var err error
	switch v.Interface().(type) {
	case Size:
		parsed, err = ParseSize(value)
	case Duration:
		parsed, err = parseDuration(value)
	default:
		return value
	}
	if err != nil {
		t.Errorf("rdmabridge.yaml: %s: %v", path, err)
		return value
	}
	return parsed.String()
}

// bare returns a configuration with as many listeners, upstreams and tenants as c that has only
// defaults. The defaults that depend on a transport or on failover are those for the
// values in c, or for the transport given.
func bare(c *Config, transport Transport) *Config {
	b := newLoader(Known{}).decode()
	for _, l := range c.Listeners {
		bl := Listener{Transport: cmp.Or(transport, l.Transport)}
		for _, x := range l.Rules { // the defaults depend on these two
			bl.Rules = append(bl.Rules, Rule{Action: x.Action, Class: x.Class})
		}
		b.Listeners = append(b.Listeners, bl)
	}
	for _, u := range c.Upstreams {
		b.Upstreams = append(b.Upstreams, Upstream{Transport: cmp.Or(transport, u.Transport), Failover: u.Failover})
	}
	b.Tenants = make([]Tenant, len(c.Tenants))
	b.setDefaults()
	one := &Config{Listeners: make([]Listener, 1), Upstreams: make([]Upstream, 1)}
	one.setDefaults()
	for i := range b.Listeners {
		b.Listeners[i].Transport = one.Listeners[0].Transport
		for k := range b.Listeners[i].Rules {
			b.Listeners[i].Rules[k].Action, b.Listeners[i].Rules[k].Class = "", ""
		}
	}
	for i := range b.Upstreams {
		b.Upstreams[i].Transport, b.Upstreams[i].Failover = one.Upstreams[0].Transport, one.Upstreams[0].Failover
	}
	return b
}

// settingsOfTwo returns the settings of two configurations by path. Both have the same
// number of listeners and of upstreams.
func settingsOfTwo(a, b *Config) map[string][2]reflect.Value {
	all := make(map[string][2]reflect.Value)
	var walk func(path string, a, b reflect.Value)
	walk = func(path string, a, b reflect.Value) {
		switch {
		case isMapping(a.Type()):
			for i, name := range settingNames(a.Type()) {
				if name == "" {
					continue // no setting
				}
				if path != "" {
					name = path + "." + name
				}
				walk(name, a.Field(i), b.Field(i))
			}
		case a.Kind() == reflect.Slice && hasName(a.Type().Elem()):
			for i := range a.Len() {
				walk(fmt.Sprintf("%s[%d]", path, i), a.Index(i), b.Index(i))
			}
		default:
			all[path] = [2]reflect.Value{a, b}
		}
	}
	walk("", reflect.ValueOf(a).Elem(), reflect.ValueOf(b).Elem())
	return all
}
