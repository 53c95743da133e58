package configs

import (
	"reflect"
	"slices"
	"strings"
)

// settings has the names of the settings that one mapping of the file may have, each
// with the settings within it. A setting that is not a mapping has none.
type settings struct{ names map[string]*settings }

// schema has all settings of a file.
var schema = settingsOf(reflect.TypeFor[Config]())

func settingsOf(t reflect.Type) *settings {
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	s := &settings{names: make(map[string]*settings)}
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

// suggest returns the known setting that resembles name most, or all known settings if none
// resembles it.
func (s *settings) suggest(name string) string {
	best, distance := "", 3
	for _, known := range s.sorted() {
		if d := editDistance(name, known); d < distance {
			best, distance = known, d
		}
	}
	if best == "" {
		return "known here: " + strings.Join(s.sorted(), ", ")
	}
	return "did you mean " + best + "?"
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
