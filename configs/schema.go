package configs

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// settings has the names of the settings that one mapping of the file may have, each
// with the settings within it. A setting that is not a mapping has none.
type settings struct {
	names map[string]*settings
	list  bool // whether there is a list of such values
	text  bool // whether the value is text, whatever it looks like
}

// named reports whether there is a list of things with names, to which a later file adds.
func (s *settings) named() bool { return s != nil && s.list && s.names["name"] != nil }

// schema has all settings of a file.
var schema = settingsOf(reflect.TypeFor[Config]())

func settingsOf(t reflect.Type) *settings {
	s := &settings{names: make(map[string]*settings)}
	if t.Kind() == reflect.Slice {
		t = t.Elem()
		s.list = true
	}
	s.text = t.Kind() == reflect.String
	if t.Kind() != reflect.Struct {
		return s
	}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("mapstructure"); name != "" {
			s.names[name] = settingsOf(t.Field(i).Type)
		}
	}
	return s
}

// prune removes from values, which a document has for s, the settings that are unknown. Null for settings becomes null
// for each of them. Empty text becomes null, which is the default.
func (s *settings) prune(values map[string]any) {
	for name, v := range values {
		sub := s.names[name]
		switch {
		case sub == nil:
			delete(values, name)
		case sub.text && v == "":
			values[name] = nil
		case !sub.list && len(sub.names) > 0:
			inner, ok := v.(map[string]any)
			if !ok {
				inner = make(map[string]any)
				for n := range sub.names {
					inner[n] = nil
				}
				values[name] = inner
			}
			sub.prune(inner)
		}
	}
}

// entry returns the settings of an entry of the list s.
func (s *settings) entry() *settings {
	if s == nil {
		return nil
	}
	return &settings{names: s.names, text: s.text}
}

// index is the index of an entry of a list in a path.
var index = regexp.MustCompile(`\[\d+\]`)

// find returns the setting at path, which has no index, or nil.
func (s *settings) find(path string) *settings {
	for name := range strings.SplitSeq(path, ".") {
		if s = s.names[name]; s == nil {
			return nil
		}
	}
	return s
}

// extension begins the names of settings at the top of a file that are for anchors alone.
const extension = "x-"

// suggest returns the known setting that resembles name most, or where the setting of this name belongs, or all known
// settings.
func (s *settings) suggest(name string) string {
	if name == "exports" && s.names["weight"] != nil { // of weights or tenants
		return "write a rule of the listener with exports, action limit and a rate: a weight and a tenant are about clients"
	}
	best, distance := "", 3
	for _, known := range s.sorted() {
		if d := editDistance(name, known); d < distance {
			best, distance = known, d
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	if places := schema.places(name); len(s.names) > fewSettings && len(places) > 0 && len(places) <= mostPlaces {
		return "it belongs in " + alternatives(places)
	}
	return "known here: " + strings.Join(s.sorted(), ", ")
}

const (
	// fewSettings can all be named. Where there are more, a setting may have been meant for another place.
	fewSettings = 8
	// mostPlaces bounds the places that suggest lists. A name that more have, such as mode, says nothing.
	mostPlaces = 3
)

// places returns the paths of the settings in s that have a setting of this name, without indexes. The top of the file is
// "the top of the file".
func (s *settings) places(name string) (paths []string) {
	var look func(path string, s *settings)
	look = func(path string, s *settings) {
		if s.names[name] != nil {
			place := path
			if path == "" {
				place = "the top of the file"
			}
			paths = append(paths, place)
		}
		for _, n := range s.sorted() {
			sub := s.names[n]
			if sub.list {
				n += "[]"
			}
			look(strings.TrimPrefix(path+"."+n, "."), sub)
		}
	}
	look("", s)
	return paths
}

func (s *settings) sorted() []string {
	var names []string
	for n := range s.names {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// editDistance returns the Levenshtein distance over octets. Names longer than
// maxDistance are as far from all others as that.
func editDistance(a, b string) int {
	const maxDistance = 64
	if len(a) > maxDistance || len(b) > maxDistance {
		return maxDistance
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substitute := diagonal
			if a[i] != b[j] {
				substitute++
			}
			diagonal = row[j+1]
			row[j+1] = min(substitute, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
