package configs

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
)

// parsers parse the single values of the types of this package.
var parsers = map[reflect.Type]func(string) (any, error){
	reflect.TypeFor[Size]():      parser(ParseSize),
	reflect.TypeFor[Duration]():  parser(parseDuration),
	reflect.TypeFor[Fraction]():  parser(parseFraction),
	reflect.TypeFor[Sample]():    parser(parseSample),
	reflect.TypeFor[Switch]():    parser(parseSwitch),
	reflect.TypeFor[Prefix]():    parser(parsePrefix),
	reflect.TypeFor[Ports]():     parser(parsePorts),
	reflect.TypeFor[IDs]():       parser(parseIDs),
	reflect.TypeFor[Procedure](): func(s string) (any, error) { return Procedure(s), nil },
	reflect.TypeFor[Program]():   func(s string) (any, error) { return Program(s), nil },
}

func parser[T any](parse func(string) (T, error)) func(string) (any, error) {
	return func(s string) (any, error) { return parse(s) }
}

// decodeValue is the hook that mapstructure calls before it converts a value. It parses
// the types of this package, and rejects values that mapstructure would convert
// silently, such as a number where text belongs.
func decodeValue(from, to reflect.Value) (any, error) {
	data := from.Interface()
	if parse, ok := parsers[to.Type()]; ok {
		switch data.(type) {
		case string, int, int64, uint64, bool:
			return parse(fmt.Sprint(data))
		case float64:
			return parse(strconv.FormatFloat(from.Float(), 'f', -1, 64))
		}
		return nil, fmt.Errorf("write a single value, not %s", describe(data))
	}
	n, isNumber := data.(int)
	switch to.Kind() {
	case reflect.Slice:
		if from.Kind() != reflect.Slice {
			return nil, nil // walk.kind has reported it
		}
	case reflect.Struct:
		if from.Kind() != reflect.Map {
			return nil, nil
		}
	case reflect.String:
		if from.Kind() != reflect.String {
			return nil, &notText{data}
		}
	case reflect.Int:
		if f, ok := data.(float64); ok && math.Abs(f) >= 1<<53 {
			return nil, fmt.Errorf("%s is too large; write a smaller whole number", describe(data))
		} else if !isNumber {
			return nil, fmt.Errorf("write a whole number, not %s", describe(data))
		} else if n <= 0 {
			return nil, fmt.Errorf("%d is not greater than 0; write a whole number from 1", n)
		}
	case reflect.Uint32:
		if !isNumber || n < 0 || n > 1<<32-1 {
			return nil, fmt.Errorf("write a whole number up to 4294967295, not %s", describe(data))
		}
	}
	return data, nil
}

// listOf returns how a list with data looks.
func listOf(data any) string {
	switch d := data.(type) {
	case string:
		if len(d) <= 40 && !strings.ContainsAny(d, ",[]\n") {
			return fmt.Sprintf(", such as [%q]", d)
		}
	case int:
		return fmt.Sprintf(", such as [%d]", d)
	case map[string]any:
		return ", with - before each entry"
	}
	return ""
}

// describe returns a short description of data for a message.
func describe(data any) string {
	switch d := data.(type) {
	case string:
		if len(d) > 40 {
			d = d[:40] + "..."
		}
		return strconv.Quote(d)
	case float64:
		return strconv.FormatFloat(d, 'f', -1, 64)
	case bool, int, int64, uint64:
		return fmt.Sprint(d)
	}
	switch reflect.ValueOf(data).Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.Map:
		return "settings"
	}
	return fmt.Sprintf("%T", data)
}

// A notText is the error of a setting that must be text.
type notText struct{ data any }

func (e *notText) Error() string {
	switch e.data.(type) {
	case bool, int, int64, uint64, float64:
		return fmt.Sprintf("write text, in quotes, not %s", describe(e.data))
	}
	return fmt.Sprintf("write text, not %s", describe(e.data))
}

// addDecode adds the problems that mapstructure found. Its error is a tree, whose leaves
// have the names of settings.
func (r *report) addDecode(err error) {
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		for _, e := range e.Unwrap() {
			r.addDecode(e)
		}
	case interface {
		Name() string
		Unwrap() error
	}:
		path, text := strings.ToLower(e.Name()), e.Unwrap().Error()
		var wrong *notText
		if errors.As(e.Unwrap(), &wrong) {
			if n, ok := wrong.data.(int); ok {
				text = cmp.Or(adviceFor(path, n), text)
			}
		}
		r.addf(path, "%s", text)
	case interface{ Unwrap() error }:
		r.addDecode(e.Unwrap())
	default:
		r.addf("", "%v", err)
	}
}
