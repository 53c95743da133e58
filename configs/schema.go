package configs

import (
	"reflect"
	"slices"
	"strings"
)

// settings are the names that may stand in one mapping of the file. A setting
// that is no mapping has none.
type settings struct{ names map[string]*settings }

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

// suggest finds the setting that was probably meant.
func (s *settings) suggest(name string) string {
	best, distance := "", 3
	for _, known := range s.sorted() {
		if d := editDistance(name, known); d < distance {
			best, distance = known, d
		}
	}
	if best == "" {
		return "; known here: " + strings.Join(s.sorted(), ", ")
	}
	return "; did you mean " + best + "?"
}

func (s *settings) sorted() []string {
	var names []string
	for n := range s.names {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// editDistance is Levenshtein's, over octets. Long names are far from all.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
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
