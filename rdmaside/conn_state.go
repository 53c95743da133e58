package rdmaside

// A connState is where a connection is in its life.
//
//	starting --Setup--> up --end--> ending --Closed--> ended
type connState uint8

const (
	starting connState = iota // only Receives are posted
	up                        // Work Requests of all kinds are posted
	ending                    // the connection posts nothing and waits for Closed
	ended                     // all memory is released
)
