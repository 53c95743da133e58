package protocol

import "testing"

// TestOf: servers are known by the first octets that they send, and no other octets are.
func TestOf(t *testing.T) {
	for _, tt := range []struct{ sent, want string }{
		{"HTTP/1.1 400 Bad Request\r\n", HTTP},
		{"MPA ID Rep Frame\x40\x01\x00\x00", MPA},
		{"\x15\x03\x01\x00\x02\x02\x46", TLS},
		{"\x16\x03\x03\x00\x7a\x02\x00", TLS},
		{"SSH-2.0-OpenSSH_9.9\r\n", "SSH"},
		{"\x80\x00\x00\x18\x12\x34\x56\x78\x00\x00\x00\x01", RPC},
		{"\x80\x00\x00\x18\x12\x34\x56\x78\x00\x00\x00\x07", ""},
		{"\x15\x03\x09", ""},
		{"\x15\x03", ""},
		{"HTT", ""},
		{"", ""},
		{"220 mail.example.com ESMTP\r\n", ""},
	} {
		if got := Of([]byte(tt.sent)); got != tt.want {
			t.Errorf("Of(%q) = %q, want %q", tt.sent, got, tt.want)
		}
	}
}
