package translate

import (
	"errors"
	"strings"
	"time"

	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/tlsconf"
)

// handshakeTimeout bounds each stage of a client's handshake. Linux's client gives up after as long.
const handshakeTimeout = 10 * time.Second

var clientModes = map[string]tlsconf.ClientMode{
	configs.TLSClientNone: tlsconf.ClientNone, configs.TLSClientRequest: tlsconf.ClientRequest, configs.TLSClientRequire: tlsconf.ClientRequire,
}

// TLSServer reads the files of a listener.
func TLSServer(t *configs.ListenerTLS) (*tlsconf.Server, error) {
	return tlsconf.NewServer(tlsconf.ServerOptions{
		Certificate: t.Certificate, Key: t.Key, Client: clientModes[t.Client.Mode],
		CA: t.Client.CA, CRL: t.Client.CRL, Names: t.Client.Names, Timeout: handshakeTimeout,
	})
}

// TLSClient reads the files of an upstream.
func TLSClient(t *configs.UpstreamTLS) (*tlsconf.Client, error) {
	return tlsconf.NewClient(tlsconf.ClientOptions{CA: t.CA, CRL: t.CRL, Certificate: t.Certificate, Key: t.Key, ServerName: t.ServerName})
}

// listenerTLSError says what is wrong with the files of a listener. configs.Known.ListenerTLS.
func listenerTLSError(t *configs.ListenerTLS) ([]string, error) {
	s, err := TLSServer(t)
	if err != nil {
		return nil, oneLine(err)
	}
	return s.Warnings(), nil
}

// upstreamTLSError says what is wrong with the files of an upstream. configs.Known.UpstreamTLS.
func upstreamTLSError(t *configs.UpstreamTLS) ([]string, error) {
	x, err := TLSClient(t)
	if err != nil {
		return nil, oneLine(err)
	}
	return x.Warnings(), nil
}

// oneLine joins the lines of an error.
func oneLine(err error) error { return errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")) }
