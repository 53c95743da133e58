package metrics

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const (
	referenceFile = "../docs/metrics.md"
	begin         = "<!-- generated: go test ./metrics -run TestReference -update -->"
)

// TestReference: the reference in docs/metrics.md is what the table generates.
func TestReference(t *testing.T) {
	old, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	introduction, _, found := strings.Cut(string(old), begin)
	if !found {
		t.Fatalf("%s has no line %q", referenceFile, begin)
	}
	text := introduction + begin + "\n" + reference(t)
	if *update {
		if err := os.WriteFile(referenceFile, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text != string(old) {
		t.Errorf("%s is not what the table says: go test ./metrics -run TestReference -update", referenceFile)
	}
	known := make(map[string]bool)
	for _, d := range All() {
		known[d.FullName()] = true
	}
	for _, name := range regexp.MustCompile(`rdmabridge_[a-z_]+`).FindAllString(introduction, -1) {
		for _, suffix := range []string{"_bucket", "_count", "_sum"} {
			if base := strings.TrimSuffix(name, suffix); known[base] {
				name = base
			}
		}
		if !known[name] {
			t.Errorf("%s speaks of %s, which is not in the table", referenceFile, name)
		}
	}
}

// reference generates the reference.
func reference(t *testing.T) string {
	byName := make(map[string]*Definition)
	for _, d := range All() {
		byName[d.Name] = d
	}
	var b strings.Builder
	shared := make(map[string]string) // where the values of a label are explained
	for _, s := range sections(t) {
		title, rest, _ := strings.Cut(s.title, ". ")
		title, more, _ := strings.Cut(strings.TrimSuffix(title, "."), ": ")
		fmt.Fprintf(&b, "\n## %s\n", title)
		if more != "" {
			fmt.Fprintf(&b, "\n%s%s.\n", strings.ToUpper(more[:1]), more[1:])
		}
		if rest != "" {
			fmt.Fprintf(&b, "\n%s\n", rest)
		}
		for _, v := range s.definitions {
			describe(&b, byName[v.name], shared)
		}
	}
	return b.String()
}

func describe(b *strings.Builder, d *Definition, shared map[string]string) {
	kind := string(d.Kind)
	if u := d.Unit(); u != "" {
		kind += ", " + u
	}
	fmt.Fprintf(b, "\n### `%s`\n\n%s. %s\n", d.FullName(), strings.ToUpper(kind[:1])+kind[1:], d.Help)
	if d.Like != "" {
		fmt.Fprintf(b, "Elsewhere: %s.\n", d.Like)
	}
	if len(d.Labels) == 0 {
		return
	}
	b.WriteString("\n")
	for _, l := range d.Labels {
		fmt.Fprintf(b, "- `%s`: %s", l.Name, l.Help)
		if len(l.Values) == 0 {
			b.WriteString("\n")
			continue
		}
		var names []string
		explained := false
		id := l.Name
		for _, v := range l.Values {
			names = append(names, "`"+v.Name+"`")
			explained = explained || v.Help != ""
			id += " " + v.Name + v.Help
		}
		switch {
		case !explained:
			fmt.Fprintf(b, ": %s\n", strings.Join(names, ", "))
		case shared[id] != "":
			fmt.Fprintf(b, ": see `%s`\n", shared[id])
		default:
			shared[id] = d.FullName()
			b.WriteString("\n")
			for _, v := range l.Values {
				fmt.Fprintf(b, "  - `%s`: %s\n", v.Name, v.Help)
			}
		}
	}
}
