package configs

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// decodeValue is the hook that mapstructure calls before it converts a value. It parses
// the types of this package, and rejects values that mapstructure would convert
// silently, such as a number where a list belongs.
func decodeValue(from, to reflect.Value) (any, error) {
	if from.Kind() == reflect.Interface {
		from = from.Elem()
	}
	data := from.Interface()
	switch to.Interface().(type) {
	case Size:
		return parseScalar(data, ParseSize)
	case Duration:
		return parseScalar(data, parseDuration)
	case Fraction:
		if f, ok := data.(float64); ok {
			data = strconv.FormatFloat(f, 'g', -1, 64)
		}
		return parseScalar(data, parseFraction)
	case Switch:
		return parseScalar(data, parseSwitch)
	case Prefix:
		return parseScalar(data, parsePrefix)
	case Ports:
		return parseScalar(data, parsePorts)
	case IDs:
		return parseScalar(data, parseIDs)
	case Procedure:
		return parseScalar(data, func(s string) (Procedure, error) { return Procedure(s), nil })
	case Program:
		return parseScalar(data, func(s string) (Program, error) { return Program(s), nil })
	}
	if to.Kind() == reflect.Slice && from.Kind() != reflect.Slice || to.Kind() == reflect.Struct && from.Kind() != reflect.Map {
		return nil, nil // walk.kind has reported it
	}
	return data, checkKind(data, from.Kind(), to.Kind())
}

// checkKind rejects data of a kind that does not suit a setting of kind to.
func checkKind(data any, from, to reflect.Kind) error {
	switch to {
	case reflect.String:
		if from != reflect.String {
			return &notText{data}
		}
	case reflect.Int:
		if n, ok := data.(int); !ok {
			return fmt.Errorf("write a whole number, not %s", describe(data))
		} else if n <= 0 {
			return fmt.Errorf("%d is not greater than 0; write a whole number from 1", n)
		}
	case reflect.Uint32:
		if n, ok := data.(int); !ok || n < 0 || n > 1<<32-1 {
			return fmt.Errorf("write a whole number up to 4294967295, not %s", describe(data))
		}
	}
	return nil
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

// parseScalar parses a value that is neither a list nor a mapping.
func parseScalar[T any](data any, parse func(string) (T, error)) (any, error) {
	switch data.(type) {
	case string, int, int64, uint64, bool:
	default:
		return nil, fmt.Errorf("write a plain value, not %s", describe(data))
	}
	v, err := parse(fmt.Sprint(data))
	if err != nil {
		return nil, err
	}
	return v, nil
}

// describe returns a short description of data for a message.
func describe(data any) string {
	switch d := data.(type) {
	case string:
		if len(d) > 40 {
			d = d[:40] + "..."
		}
		return strconv.Quote(d)
	case bool, int, int64, uint64, float64:
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

// adviseDecode returns the text of err, which is about the setting at path, with what to write.
func (r *report) adviseDecode(path string, err error) string {
	var text *notText
	if errors.As(err, &text) {
		n, ok := text.data.(int)
		if advice := adviceFor(path, n); ok && advice != "" {
			return fmt.Sprintf("%d is not an address; %s", n, advice)
		}
	}
	return err.Error()
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
		path := strings.ToLower(e.Name())
		r.addf(path, "%s", r.adviseDecode(path, e.Unwrap()))
	case interface{ Unwrap() error }:
		r.addDecode(e.Unwrap())
	default:
		r.addf("", "%v", err)
	}
}
