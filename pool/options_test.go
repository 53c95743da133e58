package pool

import (
	"errors"
	"strings"
	"testing"
)

// TestValidate: New reports every value that is missing or does not fit, with the name of
// the pool.
func TestValidate(t *testing.T) {
	if _, err := New(complete(Options{}), nil, nil); err != nil {
		t.Errorf("complete options: %v", err)
	}
	_, err := New(Options{Name: "storage"}, nil, nil)
	if err == nil {
		t.Fatal("options without a value make a pool")
	}
	joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err)
	if !ok || len(joined.Unwrap()) != 7 {
		t.Errorf("want seven problems: %v", err)
	}
	o := complete(Options{Name: "storage"})
	o.BackoffMax = o.BackoffMin / 2
	if _, err = New(o, nil, nil); err == nil || !strings.HasPrefix(err.Error(), `pool "storage": the longest pause`) {
		t.Errorf("a longest pause shorter than the first: %v", err)
	}
}
