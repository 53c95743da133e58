package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxSettings bounds the YAML nodes of a file, each counted as often as an alias refers
// to it.
const maxSettings = 100_000

// A source has the line of every setting of a file. Viper keeps no lines, and it drops
// keys whose value is null, so that unknown ones among them would not be reported. The
// source uses the same YAML library as viper.
type source struct {
	lines map[string]int // by path in lower case, as viper has it
	nodes int            // visited so far
}

// line returns the line of the setting at path, or of the nearest setting around it. It
// is 0 if the file has neither.
func (s *source) line(path string) int {
	if s == nil {
		return 0
	}
	for path = strings.ToLower(path); ; {
		if n, ok := s.lines[path]; ok {
			return n
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return 0
		}
		path = path[:i]
	}
}

// readSource sets r.source to the lines of the file, and reports keys that are unknown
// or given twice. Its error is a problem of the file as a whole.
func readSource(data []byte, r *report) error {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return nil // an empty file
	} else if err != nil {
		return err
	}
	var second yaml.Node
	if err := d.Decode(&second); err == nil {
		return fmt.Errorf("line %d: a second YAML document begins here; write only one", second.Line)
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	r.source = &source{lines: make(map[string]int)}
	return r.source.walk(doc.Content[0], "", schema, r)
}

// walk visits n, the value of the setting at path. sc has the settings that may be
// within it.
func (s *source) walk(n *yaml.Node, path string, sc *settings, r *report) error {
	if err := s.count(n); err != nil {
		return err
	}
	switch n.Kind {
	case yaml.AliasNode:
		return s.walk(n.Alias, path, sc, r)
	case yaml.SequenceNode:
		for i, e := range n.Content {
			p := fmt.Sprintf("%s[%d]", path, i)
			s.lines[p] = e.Line
			if err := s.walk(e, p, sc, r); err != nil {
				return err
			}
		}
	case yaml.MappingNode:
		return s.walkMapping(n, path, sc, r, false)
	}
	return nil
}

// count bounds how many nodes a walk visits. Nested aliases can stand for very many.
func (s *source) count(n *yaml.Node) error {
	if s.nodes++; s.nodes > maxSettings {
		return fmt.Errorf("line %d: the file has more than %d settings", n.Line, maxSettings)
	}
	return nil
}

// walkMapping visits the keys of n, then the keys that "<<" merges into it. If n itself
// is merged into another mapping, that one overrides its keys.
func (s *source) walkMapping(n *yaml.Node, path string, sc *settings, r *report, merged bool) error {
	for _, merges := range []bool{false, true} {
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if merges != (k.Tag == "!!merge") {
				continue
			}
			var err error
			if merges {
				err = s.walkMerge(v, path, sc, r)
			} else {
				err = s.walkKey(k, v, path, sc, r, merged)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// walkMerge visits n, the value of "<<" in the mapping at path.
func (s *source) walkMerge(n *yaml.Node, path string, sc *settings, r *report) error {
	if err := s.count(n); err != nil {
		return err
	}
	switch n.Kind {
	case yaml.AliasNode:
		return s.walkMerge(n.Alias, path, sc, r)
	case yaml.MappingNode:
		return s.walkMapping(n, path, sc, r, true)
	case yaml.SequenceNode:
		for _, e := range n.Content {
			if err := s.walkMerge(e, path, sc, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// walkKey visits the key k, with the value v, of the mapping at path.
func (s *source) walkKey(k, v *yaml.Node, path string, sc *settings, r *report, merged bool) error {
	name := strings.ToLower(k.Value)
	p := name
	if path != "" {
		p = path + "." + name
	}
	if sc == nil || len(sc.names) == 0 {
		return nil // a mapping where a plain value belongs: decodeValue reports it
	}
	if first, ok := s.lines[p]; ok && merged {
		return nil
	} else if ok {
		// The two differ in case. Viper would use one of them silently.
		r.add(problem{Line: k.Line, Path: p, Text: fmt.Sprintf("line %d has this setting already; remove one of the two", first)})
		return nil
	}
	s.lines[p] = k.Line
	sub, ok := sc.names[name]
	if !ok {
		r.addf(p, "unknown setting; %s", sc.suggest(name))
		return nil
	}
	return s.walk(v, p, sub, r)
}

// given reports whether the file has the setting at path, null or not.
func (s *source) given(path string) bool {
	if s == nil {
		return false
	}
	_, ok := s.lines[strings.ToLower(path)]
	return ok
}
