package configs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxSettings bounds the nodes of a file after its aliases are followed.
const maxSettings = 100_000

// A source knows the line of every setting of a file. It exists because viper
// forgets lines, and drops keys whose value is null before anybody could ask
// whether they are known. It uses the YAML library that viper itself uses.
type source struct {
	lines map[string]int // by path, in lower case as viper has it
	seen  int
}

// line is where the setting at path stands, or the nearest one around it;
// 0 when there is none.
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

// readSource walks the file against the settings there are, and reports keys
// that are unknown or given twice.
func readSource(data []byte, r *report) (*source, error) {
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := d.Decode(&doc); errors.Is(err, io.EOF) {
		return &source{}, nil
	} else if err != nil {
		return nil, err
	}
	var rest yaml.Node
	if err := d.Decode(&rest); err == nil {
		return nil, fmt.Errorf("line %d: a second YAML document; one is enough", rest.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	s := &source{lines: make(map[string]int)}
	r.source = s
	return s, s.walk(doc.Content[0], "", schema, r)
}

// walk visits n, the value of the setting at path, whose sub-settings are sc.
func (s *source) walk(n *yaml.Node, path string, sc *settings, r *report) error {
	if s.seen++; s.seen > maxSettings {
		return fmt.Errorf("line %d: more than %d settings", n.Line, maxSettings)
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

// walkMapping visits the keys of n, then those that "<<" merges in. merged says
// that n itself is merged, so that a key seen before is an override.
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

func (s *source) walkMerge(n *yaml.Node, path string, sc *settings, r *report) error {
	if s.seen++; s.seen > maxSettings {
		return fmt.Errorf("line %d: more than %d settings", n.Line, maxSettings)
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

func (s *source) walkKey(k, v *yaml.Node, path string, sc *settings, r *report, merged bool) error {
	name := strings.ToLower(k.Value)
	p := name
	if path != "" {
		p = path + "." + name
	}
	if sc == nil || len(sc.names) == 0 {
		return nil // a mapping where a plain value belongs; decoding says so
	}
	if first, ok := s.lines[p]; ok && merged {
		return nil
	} else if ok {
		// Two spellings of one key: viper would let one of them win.
		r.problems = append(r.problems, problem{
			File: r.file, Line: k.Line, Path: p, Text: fmt.Sprintf("given twice, first on line %d", first),
		})
		return nil
	}
	s.lines[p] = k.Line
	sub, ok := sc.names[name]
	if !ok {
		r.addf(p, "unknown setting%s", sc.suggest(name))
		return nil
	}
	return s.walk(v, p, sub, r)
}

// given reports whether the file has the setting at path, even if null.
func (s *source) given(path string) bool {
	if s == nil {
		return false
	}
	_, ok := s.lines[strings.ToLower(path)]
	return ok
}
