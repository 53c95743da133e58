package crowd

// Counts are numbers of connections by host, for limits that need no more than numbers. The zero Counts
// is empty. It is not safe for concurrent use.
type Counts struct {
	all    int
	byHost map[Host]int // at most all entries
}

// Add counts one connection of h.
func (c *Counts) Add(h Host) {
	if c.byHost == nil {
		c.byHost = make(map[Host]int)
	}
	c.all++
	c.byHost[h]++
}

// Remove undoes one Add of h.
func (c *Counts) Remove(h Host) {
	c.all--
	if c.byHost[h]--; c.byHost[h] == 0 {
		delete(c.byHost, h)
	}
}

// All returns how many connections all hosts have.
func (c *Counts) All() int { return c.all }

// Of returns how many connections h has.
func (c *Counts) Of(h Host) int { return c.byHost[h] }

// Hosts returns how many hosts have connections.
func (c *Counts) Hosts() int { return len(c.byHost) }
