package slowstart

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/rdmabridge/rdmabridge/internal/loop"
)

// TestClients: Calls of clients are limited by number and by octets, and a
// Call that is not answered raises neither limit.
func TestClients(t *testing.T) { synctest.Test(t, testClients) }

func testClients(t *testing.T) {
	s := New(4, 1000)
	var rooms []int
	var age uint32
	for range 5 {
		var room int
		if room, age = s.Received(100); age == 0 {
			t.Fatal("a Call is not counted")
		}
		rooms = append(rooms, room)
	}
	if want := []int{3, 2, 1, 0, 0}; !slices.Equal(rooms, want) {
		t.Errorf("room for %v more Calls, want %v", rooms, want)
	}
	for range 5 {
		s.Dropped(100, age)
	}
	if got := s.Room(); got != 4 {
		t.Errorf("room for %d Calls after all were dropped, want 4", got)
	}
	if room, _ := s.Received(1000); room != 0 {
		t.Errorf("room for %d Calls after 1000 octets, want 0", room)
	}
	s.Answered(1000, age, loop.Elsewhere)
	if room, _ := s.Received(1000); room != 4 {
		t.Errorf("room for %d Calls, 1000 octets of 2000 in use; want 4", room)
	}
	s.Answered(1000, age, loop.Elsewhere)
	s.Answered(0, 0, loop.Elsewhere) // the Reply to a Call that was read before a restart
	if got := s.Limit(); got != 7 {
		t.Errorf("the limit is %d after three Replies, want 7", got)
	}
	if got := s.Room(); got != 7 {
		t.Errorf("room for %d Calls, want 7: none waits for a Reply", got)
	}
	if room, _ := New(16, 1000).Received(740); room != 15 {
		t.Errorf("room for %d Calls, want 15", room)
	}
	if room, _ := New(16, 1000).Received(750); room != 4 {
		t.Errorf("room for %d Calls with three quarters of the octets in use, want a quarter of the limit", room)
	}
	for s.Limit() > 0 {
		_, age := s.Received(0)
		s.Answered(0, age, 0)
	}
	if _, age := s.Received(0); age != 0 || !s.Over() {
		t.Error("the slow start is not over")
	}
	if !New(end, 1).Over() || !(*Window)(nil).Over() {
		t.Error("a slow start that limits nothing is not over")
	}
}
