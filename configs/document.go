package configs

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"go.yaml.in/yaml/v4"
)

// A document is one parsed file.
type document struct {
	name string     // for messages; "" for data that did not come from a file
	root *yaml.Node // a mapping; nil for an empty file
}

// parseDocument parses a file. It reports the problems of its syntax to r.
func parseDocument(name string, data []byte, r *report) (d document, ok bool) {
	d.name = name
	if len(data) > maxFile {
		r.add(problem{File: name, Text: "the file is longer than " + Size(maxFile).String() + "; name the configuration file"})
		return d, false
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		r.add(problem{File: name, Text: err.Error()})
		return d, false
	}
	var first, second yaml.Node
	if err := loader.Load(&first); errors.Is(err, io.EOF) {
		return d, true
	} else if err != nil {
		r.addSyntax(name, data, err)
		return d, false
	}
	if err := loader.Load(&second); err == nil {
		r.add(problem{File: name, Line: second.Line, Text: "a second YAML document begins here; write only one"})
		return d, false
	} else if !errors.Is(err, io.EOF) {
		r.addSyntax(name, data, err)
		return d, false
	}
	root := first.Content[0]
	switch {
	case root.Kind == yaml.MappingNode:
		d.root = root
	case root.ShortTag() != "!!null":
		r.add(problem{File: name, Line: root.Line, Text: "this is no setting; write name: value" + lacksSpace(root)})
		return d, false
	}
	return d, true
}

// lacksSpace returns what to write in place of a text such as a:1.
func lacksSpace(n *yaml.Node) string {
	name, value, ok := strings.Cut(n.Value, ":")
	if n.Kind != yaml.ScalarNode || !ok || strings.ContainsAny(name, " \n") || strings.Contains(value, "\n") {
		return ""
	}
	return ", with a space after the colon: " + name + ": " + value
}

// removeAnchors removes the settings that are there for anchors alone.
func (d document) removeAnchors() {
	var rest []*yaml.Node
	for i := 0; i+1 < len(d.root.Content); i += 2 {
		if k := d.root.Content[i]; k.Kind != yaml.ScalarNode || !strings.HasPrefix(strings.ToLower(k.Value), extension) {
			rest = append(rest, k, d.root.Content[i+1])
		}
	}
	d.root.Content = rest
}

// values returns the settings of the file. A walk has made their names lower case.
func (d document) values(r *report) map[string]any {
	m := make(map[string]any)
	// The walk has found keys that are there twice, in any case.
	if err := d.root.Load(&m, yaml.WithUniqueKeys(false)); err != nil {
		r.addSyntax(d.name, nil, err)
	}
	return m
}
