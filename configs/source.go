package configs

import (
	"fmt"
	"maps"
	"strings"

	"go.yaml.in/yaml/v4"
)

// maxSettings bounds the YAML nodes of all files, each counted as often as an alias refers
// to it.
const maxSettings = 100_000

// A position is where a setting stands.
type position struct {
	file string
	line int
}

// A source has the position of every setting. Viper keeps none, and it drops keys whose value is null, so that
// unknown ones among them would not be reported.
type source struct {
	positions map[string]position // by path in lower case, as viper has it; an index counts through all files
	entries   map[string]int      // of earlier documents in lists that add up, by path
	nodes     int                 // visited so far
}

func newSource() *source {
	return &source{positions: make(map[string]position), entries: make(map[string]int)}
}

// position returns the position of the setting at path, or of the nearest setting around it. It
// is zero if no file has either.
func (s *source) position(path string) position {
	if s == nil {
		return position{}
	}
	for path = strings.ToLower(path); ; {
		if p, ok := s.positions[path]; ok {
			return p
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return position{}
		}
		path = path[:i]
	}
}

// given reports whether a file has the setting at path, null or not.
func (s *source) given(path string) bool {
	if s == nil {
		return false
	}
	_, ok := s.positions[strings.ToLower(path)]
	return ok
}

// A walk visits one document. It adds the positions of settings to a source, and reports keys that are
// unknown or given twice.
type walk struct {
	source *source
	file   string
	r      *report

	environment bool                // whether there is one
	expanded    map[*yaml.Node]bool // whether a value that was visited has something from the environment
	length      int                 // of all that was expanded
	own         map[string]bool     // paths of settings of this document
	incomplete  bool                // whether a value could not be expanded
	unusable    bool                // whether the values mean something else than they look like
}

// read visits the document d, which comes after those that it has visited before.
func (s *source) read(d document, environment bool, r *report) *walk {
	w := &walk{source: s, file: d.name, r: r, environment: environment, expanded: make(map[*yaml.Node]bool), own: make(map[string]bool)}
	d.removeAnchors()
	if err := w.value(d.root, "", schema); err != nil {
		r.add(problem{File: d.name, Text: err.Error()})
		w.unusable = true
	}
	return w
}

// forget removes the positions within the setting at path, which a later document replaces.
func (s *source) forget(path string) {
	maps.DeleteFunc(s.positions, func(p string, _ position) bool { return p != path && within(p, path) })
}

// at returns the position of n.
func (w *walk) at(n *yaml.Node) position { return position{w.file, n.Line} }

func (w *walk) report(n *yaml.Node, path, format string, args ...any) {
	w.r.add(problem{File: w.file, Line: n.Line, Path: path, Text: fmt.Sprintf(format, args...)})
}

// value visits n, the value of the setting at path. sc has the settings that may be within it.
func (w *walk) value(n *yaml.Node, path string, sc *settings) error {
	if err := w.count(n); err != nil {
		return err
	}
	switch n.Kind {
	case yaml.AliasNode:
		return w.value(n.Alias, path, sc)
	case yaml.ScalarNode:
		w.scalar(n, sc)
	}
	if !w.kind(n, path, sc) {
		return nil
	}
	if n.Kind != yaml.MappingNode && !sc.named() && !strings.Contains(path, "[") { // entries of a list are of one file
		w.source.forget(path)
	}
	switch n.Kind {
	case yaml.SequenceNode:
		for i, e := range n.Content {
			p := fmt.Sprintf("%s[%d]", path, w.source.entries[path]+i)
			w.source.positions[p] = w.at(e)
			if err := w.value(e, p, sc.entry()); err != nil {
				return err
			}
			if e.ShortTag() == "!!null" {
				w.report(e, p, "the entry is empty; write a value, or remove it")
			}
		}
	case yaml.MappingNode:
		return w.mapping(n, path, sc, false)
	}
	return nil
}

// kind reports whether n is the list or the settings that belong at path. Viper would ignore another value if an
// earlier document has them.
func (w *walk) kind(n *yaml.Node, path string, sc *settings) bool {
	isList := sc != nil && sc.list
	isSettings := sc != nil && !sc.list && len(sc.names) > 0
	if n.ShortTag() == "!!null" || (!isList || n.Kind == yaml.SequenceNode) && (!isSettings || n.Kind == yaml.MappingNode) {
		return true
	}
	var data any
	_ = n.Load(&data) // the file has been parsed
	if isList {
		w.r.addf(path, "write a list%s, not %s", listOf(data), describe(data))
	} else {
		w.r.addf(path, "write settings (name: value), not %s; known here: %s", describe(data), strings.Join(sc.sorted(), ", "))
	}
	return false
}

// scalar expands n once, and makes it what the setting sc needs if it has something from the environment.
func (w *walk) scalar(n *yaml.Node, sc *settings) {
	expanded, ok := w.expanded[n]
	if !ok {
		expanded = w.expand(n)
		w.expanded[n] = expanded
	}
	if expanded {
		setType(n, sc != nil && sc.text)
	}
}

// count bounds how many nodes a walk visits. Nested aliases can stand for very many.
func (w *walk) count(n *yaml.Node) error {
	if w.source.nodes++; w.source.nodes > maxSettings {
		return fmt.Errorf("there are more than %d settings", maxSettings)
	}
	return nil
}

// mapping visits the keys of n, then the keys that "<<" merges into it. If n itself
// is merged into another mapping, that one overrides its keys.
func (w *walk) mapping(n *yaml.Node, path string, sc *settings, merged bool) error {
	seen := make(map[string]int)
	for _, merges := range []bool{false, true} {
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if merges != (k.Tag == "!!merge") {
				continue
			}
			var err error
			if merges {
				err = w.merge(v, path, sc)
			} else {
				err = w.key(k, v, path, sc, merged, seen)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// merge visits n, the value of "<<" in the mapping at path.
func (w *walk) merge(n *yaml.Node, path string, sc *settings) error {
	if err := w.count(n); err != nil {
		return err
	}
	switch n.Kind {
	case yaml.AliasNode:
		return w.merge(n.Alias, path, sc)
	case yaml.MappingNode:
		return w.mapping(n, path, sc, true)
	case yaml.SequenceNode:
		for _, e := range n.Content {
			if err := w.merge(e, path, sc); err != nil {
				return err
			}
		}
	default:
		w.report(n, path, "<< merges settings from an anchor; write one such as *base")
	}
	return nil
}

// key visits the key k, with the value v, of the mapping at path. seen has the lines of the keys of that
// mapping so far.
func (w *walk) key(k, v *yaml.Node, path string, sc *settings, merged bool, seen map[string]int) error {
	if k.Kind != yaml.ScalarNode {
		w.report(k, path, "a list cannot be the name of a setting; write an IPv6 address in quotes, such as \"[::1]:2049\"")
		w.unusable = true
		return nil
	}
	name := strings.ToLower(k.Value)
	k.Value = name // so that a setting overrides a merged one that is written in another case
	p := name
	if path != "" {
		p = path + "." + name
	}
	if first, ok := seen[name]; ok {
		w.report(k, p, "line %d has this setting already; remove one of the two", first)
		return nil
	}
	seen[name] = k.Line
	if sc == nil || len(sc.names) == 0 {
		return nil // a mapping where a plain value belongs: decodeValue reports it
	}
	if w.own[p] && merged {
		return nil
	}
	w.own[p] = true
	w.source.positions[p] = w.at(k)
	sub, ok := sc.names[name]
	if !ok {
		if strings.HasSuffix(p, ".limits.fragments") {
			w.report(k, p, "there is no such limit any more, because limits.record bounds fragments too; remove this setting")
			return nil
		}
		if section, in, dotted := strings.Cut(name, "."); dotted && sc.names[section] != nil {
			w.report(k, p, "a dot does not lead into a section; write %s: {%s: ...}", section, in)
			return nil
		}
		w.report(k, p, "unknown setting; %s", sc.suggest(name))
		return nil
	}
	return w.value(v, p, sub)
}
