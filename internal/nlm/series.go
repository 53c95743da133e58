package nlm

import "github.com/rs/zerolog"

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
	refusedArguments                  // its arguments cannot be read
	refusedBusy                       // too many Calls under way
	refusedTable                      // too many locks: LCK_DENIED_NOLOCKS
	refusedStranger                   // GRANTED of a host that is not the server, or an answer that nobody waits for
	refusals                          // how many there are
)

func (s *Server) refuse(refusal) {}

type granting uint8

const (
	grantedTaken granting = iota
	grantedRefused
	grantedUnknown
	grantedAgain
	grantedUnanswered
)

type notice uint8

const (
	noticeServer notice = iota
	noticeClient
	noticeRepeated
	noticeStranger
	noticeTold
	noticeUntold
)

func (s *Server) grants(granting)             {}
func (s *Server) notices(notice)              {}
func (s *Server) called(uint32, uint32, bool) {}

// unheard logs that a client has not been told something.
func (s *Server) unheard(p place, what string, err error) {
	if s.ctx.Err() != nil {
		return // the Server ends
	}
	s.unheards.Line(&s.log, zerolog.WarnLevel, "nlm_client_unreachable").Stringer("client", p.client).Str("about", what).Err(err).
		Msg("nlm: a client's lock manager or status monitor does not answer")
}
