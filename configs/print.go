package configs

import (
	"bytes"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"
)

// A Setting is one setting of a configuration, with where its value comes from.
type Setting struct {
	Path  string // such as listeners[nfs].limits.calls
	Value string // in the format of a file
	Where string // it comes from: "line 7", "site.yaml:7" or "RDMABRIDGE_LOG_LEVEL"; "" for a default
	Line  int    // of the file; 0 for a value that is from no file
	File  string // the file, or the variable of the environment
}

// Settings returns the settings that have a value, in the order of the Config. Lists of listeners and
// upstreams are taken apart, and other lists are one setting each.
func (c *Config) Settings() []Setting {
	var all []Setting
	c.walk(func(s Setting, _ reflect.Value) *yaml.Node {
		all = append(all, s)
		return nil
	})
	return all
}

// AppendYAML returns a file with the settings of c that keep wants. Each setting has the comment that
// comment returns, unless that is "". Load reads the file as c again, if keep wants all settings, but for
// the identity, which is a secret: its text is a hash, and it is left out.
func (c *Config) AppendYAML(b []byte, keep func(Setting) bool, comment func(Setting) string) ([]byte, error) {
	root := c.walk(func(s Setting, v reflect.Value) *yaml.Node {
		if _, secret := v.Interface().(Identity); secret || !keep(s) {
			return nil
		}
		n := valueNode(v)
		n.LineComment = comment(s)
		return n
	})
	if len(root.Content) == 0 {
		return b, nil
	}
	out := bytes.NewBuffer(b)
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// walk calls leaf for each setting, and returns a mapping of the nodes that leaf returns.
func (c *Config) walk(leaf func(Setting, reflect.Value) *yaml.Node) *yaml.Node {
	w := walker{report: &report{source: c.source, files: c.files}, leaf: leaf}
	return w.mapping("", "", reflect.ValueOf(c).Elem())
}

// A walker walks a configuration.
type walker struct {
	report *report // says where settings stand
	leaf   func(Setting, reflect.Value) *yaml.Node
}

// mapping walks settings. path is for users; place has the indices that the source has.
func (w *walker) mapping(path, place string, v reflect.Value) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for i, name := range settingNames(v.Type()) {
		if name == "" || !applies(path, name, v) {
			continue
		}
		p, q := name, name
		if path != "" {
			p, q = path+"."+name, place+"."+name
		}
		if n := w.setting(p, q, v.Field(i)); n != nil {
			m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, n)
		}
	}
	return m
}

// applies reports whether the settings v may have one of that name. Some have a default that a file must
// not spell out.
func applies(path, name string, v reflect.Value) bool {
	switch p := v.FieldByName("Provider"); {
	case name == "iwarp" && p.IsValid():
		return p.String() == ProviderIWARP
	case name == "revision1":
		return !strings.HasPrefix(path, "listeners") // only upstreams dial
	}
	return true
}

func (w *walker) setting(path, place string, v reflect.Value) *yaml.Node {
	switch {
	case isMapping(v.Type()):
		if n := w.mapping(path, place, v); len(n.Content) > 0 {
			return n
		}
		return nil
	case v.Kind() == reflect.Slice && hasName(v.Type().Elem()):
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			e := v.Index(i)
			n := w.mapping(path+"["+nameOf(e)+"]", fmt.Sprintf("%s[%d]", place, i), e)
			if len(n.Content) > 0 {
				list.Content = append(list.Content, n)
			}
		}
		if len(list.Content) == 0 {
			return nil
		}
		return list
	}
	s := Setting{Path: path, Value: text(v)}
	if s.Value == "" {
		return nil
	}
	if w.report.source.given(place) {
		at := w.report.source.position(place)
		s.Where, s.Line, s.File = w.report.where(place), at.line, at.file
	}
	return w.leaf(s, v)
}

// valueNode returns a value as a file has it: lists and the mappings in them on one line.
func valueNode(v reflect.Value) *yaml.Node {
	switch {
	case v.Kind() == reflect.Slice:
		n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for i := range v.Len() {
			n.Content = append(n.Content, valueNode(v.Index(i)))
		}
		return n
	case isMapping(v.Type()):
		n := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
		for i, name := range settingNames(v.Type()) {
			if name != "" && text(v.Field(i)) != "" {
				n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, valueNode(v.Field(i)))
			}
		}
		return n
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text(v)}
	if _, err := strconv.ParseInt(n.Value, 0, 64); err != nil || v.Kind() == reflect.String {
		n.SetString(n.Value)
	}
	if k := v.Interface(); k == On || k == Off {
		n.Tag, n.Style = "", 0 // on and off without quotes
	}
	return n
}
