package configs

import (
	"encoding/json"
	"reflect"
	"strings"
)

// A schemaNode is a JSON Schema, or a part of one.
type schemaNode map[string]any

// JSONSchema returns a JSON Schema (2020-12) of a file, for editors: the settings of Config with their types, the
// words and bounds of the checks, and the comments of the annotated file.
func JSONSchema() ([]byte, error) {
	g := schemaGenerator{comments: annotations(), bounds: collectBounds()}
	root := g.mapping(reflect.TypeFor[Config](), "")
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Configuration of rdmabridge"
	root["patternProperties"] = schemaNode{"^" + extension: schemaNode{"description": "A place for anchors; no setting."}}
	root["$defs"] = schemaNode{"variable": schemaNode{
		"description": "A value from the environment: ${NAME} or ${NAME:-default}.",
		"type":        "string", "pattern": `\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}`,
	}}
	return json.MarshalIndent(root, "", "  ")
}

// A schemaGenerator makes schemas of types.
type schemaGenerator struct {
	comments map[string]string // by path without indices
	bounds   *bounds
}

// mapping returns the schema of settings at path, null included.
func (g *schemaGenerator) mapping(t reflect.Type, path string) schemaNode {
	properties := make(schemaNode)
	var required []string
	for i, name := range settingNames(t) {
		if name == "" {
			continue
		}
		p := name
		if path != "" {
			p = path + "." + name
		}
		s := g.setting(t.Field(i).Type, p)
		comment := g.comments[p]
		if comment != "" {
			s["description"] = comment
		}
		if strings.HasPrefix(comment, "Required.") && !strings.HasPrefix(comment, "Required. With ") {
			required = append(required, name)
		}
		properties[name] = s
	}
	s := schemaNode{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}

// setting returns the schema of a setting of type t at path.
func (g *schemaGenerator) setting(t reflect.Type, path string) schemaNode {
	switch {
	case isMapping(t):
		return g.mapping(t, path)
	case t.Kind() == reflect.Slice:
		entry := g.setting(t.Elem(), path)
		if isMapping(t.Elem()) {
			entry["type"] = "object" // an empty entry is an error
		}
		return schemaNode{"type": []string{"array", "null"}, "items": entry}
	}
	null := schemaNode{"type": "null"}
	return schemaNode{"anyOf": append(g.value(t, path), schemaNode{"$ref": "#/$defs/variable"}, null)}
}

const (
	sizePattern     = `^\s*[0-9]+\s*([KMGT]iB|[kMGT]?B)?\s*$`
	durationPattern = `^(none|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$`
	fractionPattern = `^[0-9]*\.?[0-9]+%?$`
	portsPattern    = `^(any|reserved|[0-9]+\s*-\s*[0-9]+)$`
	idsPattern      = `^[0-9]+(\s*-\s*[0-9]+)?$`
)

// value returns the schemas of which one must match a single value of type t.
func (g *schemaGenerator) value(t reflect.Type, path string) []schemaNode {
	text := func(pattern string) schemaNode { return schemaNode{"type": "string", "pattern": pattern} }
	number := schemaNode{"type": "integer", "minimum": 1}
	switch t {
	case reflect.TypeFor[Size]():
		return []schemaNode{number, text(sizePattern)}
	case reflect.TypeFor[Duration]():
		return []schemaNode{text(durationPattern)}
	case reflect.TypeFor[Fraction]():
		return []schemaNode{{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, text(fractionPattern)}
	case reflect.TypeFor[Sample]():
		return append(g.value(reflect.TypeFor[Fraction](), path), schemaNode{"enum": []any{sampleAuto}})
	case reflect.TypeFor[Switch]():
		return []schemaNode{{"enum": []any{"on", "off", "yes", "no", "true", "false", true, false}}}
	case reflect.TypeFor[Prefix]():
		return []schemaNode{{"type": "string"}}
	case reflect.TypeFor[Ports]():
		return []schemaNode{text(portsPattern)}
	case reflect.TypeFor[IDs]():
		return []schemaNode{{"type": "integer", "minimum": 0}, text(idsPattern)}
	case reflect.TypeFor[Procedure](), reflect.TypeFor[Program]():
		return []schemaNode{{"type": "integer", "minimum": 0}, {"type": "string"}}
	}
	switch t.Kind() {
	case reflect.Int:
		if most := g.bounds.most[path]; most > 0 {
			number["maximum"] = most
		}
		return []schemaNode{number}
	case reflect.Uint32:
		return []schemaNode{{"type": "integer", "minimum": 0, "maximum": uint32(1<<32 - 1)}}
	}
	if words := g.bounds.allowed[path]; len(words) > 0 {
		return []schemaNode{{"enum": words}}
	}
	return []schemaNode{{"type": "string"}}
}
