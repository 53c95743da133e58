package doctor

import (
	"encoding/binary"
	"errors"
)

// Limits are what a device can do, as its driver says.
type Limits struct {
	QueuePairs       uint32 `json:"max_qp"`
	WorkRequests     uint32 `json:"max_qp_wr"`
	Completions      uint32 `json:"max_cqe"`
	CompletionQueues uint32 `json:"max_cq"`
	Parts            uint32 `json:"max_sge"`
	ReadParts        uint32 `json:"max_sge_rd"`
	Regions          uint32 `json:"max_mr"`
	RegionSize       Amount `json:"max_mr_size"`
	Windows          uint32 `json:"max_mw"`
	ReadsIn          uint32 `json:"max_qp_rd_atom"`      // RDMA Reads of the peer, on a connection
	ReadsOut         uint32 `json:"max_qp_init_rd_atom"` // RDMA Reads of this side

	ports []portLimits
}

// portLimits are what the uverbs interface says of a port.
type portLimits struct{ number, mtu, maxMTU int }

// The lengths of the answers: struct ib_uverbs_query_device_resp and struct
// ib_uverbs_query_port_resp of rdma/ib_user_verbs.h.
const (
	queryDeviceLen = 176
	queryPortLen   = 40
)

var errShortAnswer = errors.New("uverbs: answer too short")

// parseQueryDevice parses struct ib_uverbs_query_device_resp.
func parseQueryDevice(b []byte) (l Limits, ports int, err error) {
	if len(b) < queryDeviceLen {
		return l, 0, errShortAnswer
	}
	// Octets 40 and on are 32-bit numbers: vendor_id, vendor_part_id, hw_ver, max_qp, ...
	n := func(i int) uint32 { return binary.NativeEndian.Uint32(b[40+4*i:]) }
	return Limits{
		RegionSize: Amount(binary.NativeEndian.Uint64(b[24:])),
		QueuePairs: n(3), WorkRequests: n(4), Parts: n(6), ReadParts: n(7), CompletionQueues: n(8), Completions: n(9),
		Regions: n(10), ReadsIn: n(12), ReadsOut: n(15), Windows: n(20),
	}, int(b[171]), nil
}

// parseQueryPort parses struct ib_uverbs_query_port_resp.
func parseQueryPort(number int, b []byte) (portLimits, error) {
	if len(b) < queryPortLen {
		return portLimits{}, errShortAnswer
	}
	return portLimits{number, mtuOf(b[28]), mtuOf(b[27])}, nil
}

// mtuOf returns the octets that a value of enum ib_mtu stands for, or 0.
func mtuOf(v byte) int {
	if v < 1 || int(v) > len(rdmaMTUs) {
		return 0
	}
	return rdmaMTUs[v-1]
}
