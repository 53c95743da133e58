package nlm

// A refusal is why a message was refused.
type refusal uint8

const (
	refusedMalformed   refusal = iota // its header cannot be read
	refusedAuth                       // RPCSEC_GSS, or AUTH_TLS on more than NULL
	refusedProgram                    // another program
	refusedVersion                    // another version
	refusedProcedure                  // no such procedure, or one that is not for a peer like this one
	refusedLong                       // longer than any Call of these programs
	refusedDenied                     // of an address that is not allowed
	refusedConnections                // too many connections
	refusedGroup                      // a datagram to a broadcast or multicast address
	refusedRate                       // too many datagrams
	refusals                          // how many there are
)

func (s *Server) refuse(refusal) {}
