package configs

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const diffBase = `
listeners:
  - {name: a, address: ":2049", upstream: s, routes: [{program: "100005", versions: [1, 3], upstream: t}], allow: [10.0.0.0/8]}
  - {name: b, address: ":20049", transport: rdma, upstream: t}
upstreams:
  - {name: s, transport: rdma, endpoints: ["h:20049"]}
  - {name: t, transport: tcp, endpoints: ["h:2049"]}
`

func mustLoad(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Load([]byte(text), testKnown())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDiff(t *testing.T) {
	onLargeMachine(t)
	for _, tc := range []struct {
		name      string
		from, to  string // replaced in diffBase
		add       string
		want      []string
		prefixOne bool // each of want is only the beginning of a change
	}{
		{name: "nothing"},
		{name: "order", from: `  - {name: s, transport: rdma, endpoints: ["h:20049"]}
  - {name: t, transport: tcp, endpoints: ["h:2049"]}`, to: `  - {name: t, transport: tcp, endpoints: ["h:2049"]}
  - {name: s, transport: rdma, endpoints: ["h:20049"]}`},
		{name: "default spelt out", add: "memory: {budget: 1GiB}\n"},
		{name: "one", add: "memory: {budget: 2GiB}\n", want: []string{"memory.budget: 1GiB -> 2GiB"}},
		{name: "several", from: "allow: [10.0.0.0/8]", to: "limits: {calls: 9}, timeouts: {idle: 1m}", add: "log: {level: debug}\n", want: []string{
			"listeners[a].allow: [10.0.0.0/8] -> (none)", "listeners[a].limits.calls: 256 -> 9",
			"listeners[a].timeouts.idle: none -> 1m0s", "log.level: info -> debug",
		}},
		{name: "routes", from: "[1, 3]", to: "[3]", want: []string{
			"listeners[a].routes: [{program: 100005, versions: [1, 3], upstream: t}] -> [{program: 100005, versions: [3], upstream: t}]",
		}},
		{name: "transport", from: "transport: rdma, upstream: t", to: "upstream: t", want: []string{
			"listeners[b].transport: rdma -> tcp",
		}, prefixOne: true},
		{name: "switch", from: `endpoints: ["h:20049"]`, to: `endpoints: ["h:20049"], iwarp: {crc: off}`, want: []string{"upstreams[s].iwarp.crc: on -> off"}},
		{name: "renamed", from: "name: b,", to: "name: c,", want: []string{
			"listeners[b]: {name: b, address: :20049, transport: rdma, upstream: t, ",
			"listeners[c]: (none) -> {name: c, address: :20049, transport: rdma, upstream: t, ",
		}, prefixOne: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			next := strings.Replace(diffBase, tc.from, tc.to, 1) + tc.add
			var got []string
			for _, c := range Diff(mustLoad(t, diffBase), mustLoad(t, next)) {
				got = append(got, c.Path+": "+cmp.Or(c.Old, "(none)")+" -> "+cmp.Or(c.New, "(none)"))
			}
			if tc.prefixOne {
				for _, w := range tc.want {
					if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, w) }) {
						t.Errorf("no change begins %q:\n%s", w, strings.Join(got, "\n"))
					}
				}
				return
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// TestDiffSeesEverySetting changes each setting in turn and expects Diff to report it.
func TestDiffSeesEverySetting(t *testing.T) {
	var leaves func(path string, v reflect.Value, visit func(string, reflect.Value))
	leaves = func(path string, v reflect.Value, visit func(string, reflect.Value)) {
		switch {
		case isMapping(v.Type()):
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() { // the others are no settings
					leaves(path+"."+f.Name, v.Field(i), visit)
				}
			}
		case v.Kind() == reflect.Slice && v.Len() > 0 && isMapping(v.Type().Elem()):
			for i := range v.Len() {
				leaves(path, v.Index(i), visit)
			}
		default:
			visit(path, v)
		}
	}
	n := 0
	var paths []string
	leaves("", reflect.ValueOf(mustLoad(t, diffBase)).Elem(), func(p string, _ reflect.Value) { paths = append(paths, p) })
	for i := range paths {
		c := mustLoad(t, diffBase)
		j := 0
		leaves("", reflect.ValueOf(c).Elem(), func(p string, v reflect.Value) {
			if j++; j-1 != i {
				return
			}
			switch v.Kind() {
			case reflect.Int, reflect.Int64:
				v.SetInt(v.Int() + 12345678912)
			case reflect.Uint8:
				v.SetUint(v.Uint()%2 + 1)
			case reflect.Float64:
				v.SetFloat((v.Float() + 1) / 3)
			case reflect.String:
				v.SetString(v.String() + "x")
			case reflect.Slice:
				v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
				if e := v.Index(v.Len() - 1); e.Kind() == reflect.String {
					e.SetString("x")
				}
			case reflect.Struct:
				f := v.Field(0)
				f.SetUint(f.Uint() + 1)
			default:
				t.Fatalf("%s: a %s", p, v.Kind())
			}
			n++
			if len(Diff(mustLoad(t, diffBase), c)) == 0 {
				t.Errorf("Diff does not report a change of %s", p)
			}
		})
	}
	if n < 60 {
		t.Errorf("visited only %d settings", n)
	}
}

func TestCheck(t *testing.T) {
	c := mustLoad(t, diffBase)
	if err := c.Check(testKnown()); err != nil {
		t.Errorf("Check of a loaded file: %v", err)
	}
	c.Memory.Budget = MiB
	if err := c.Check(testKnown()); err == nil || !strings.Contains(err.Error(), "memory.budget: 1MiB is too little") {
		t.Errorf("a budget that is too little: %v", err)
	}
}
