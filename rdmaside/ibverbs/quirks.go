package ibverbs

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
)

// Quirks says how a driver of rdma-core departs from what the verbs promise, and which of its
// abilities are trusted. The zero value is the careful choice, and is used for drivers that the
// table does not know.
type Quirks struct {
	Driver string // as DriverOf returns it

	// Refused is the reason why the provider cannot use the driver at all. "" if it can.
	Refused string

	// InvalidatedBit is the bit of a completion's wc_flags that reports a remote
	// invalidation. 0 means that the driver reports none.
	InvalidatedBit uint32

	// Windows says whether type 2 memory windows are used without being asked for.
	Windows WindowSupport

	// AddressOffsets says that the offsets of registered memory are addresses of this
	// process, because the driver ignores the offset that it is asked for.
	AddressOffsets bool

	// ReadIntoRemote says that on iWARP the memory of an RDMA Read must be registered for remote
	// writing.
	ReadIntoRemote bool

	// LateReads says that an RDMA Read may complete after a Send or Write that was posted after it.
	LateReads bool

	// RepeatsHandles says that the driver may give a handle again soon after it died.
	RepeatsHandles bool

	// NoInlineInvalidate says that the driver fails a Send With Invalidate whose octets are in the Work Request.
	NoInlineInvalidate bool

	// WeakRights says that a peer may read memory that is registered for writing only.
	WeakRights bool

	// MemlockOfRoot says that RLIMIT_MEMLOCK binds processes with CAP_IPC_LOCK too.
	MemlockOfRoot bool

	// Proved says that the provider's tests run on this driver.
	Proved bool

	Source string // how the row is known
}

// WindowSupport says how far a driver's type 2 memory windows can be trusted.
type WindowSupport uint8

const (
	// WindowsAsked means that there are none, or that it is not known whether the device checks the
	// bounds, the state and the connection of a window at each access and each invalidation. They
	// are used only if the configuration asks for them. Then each is bound to a region that has no
	// other octets, and peers are not allowed to invalidate them.
	WindowsAsked WindowSupport = iota
	// WindowsTrusted means that the device checks all that. Windows are bound to the registered
	// arena, and peers may invalidate them.
	WindowsTrusted
)

// Bits of ibv_wc.wc_flags.
const (
	wcInvalidated       = 1 << 3 // IBV_WC_WITH_INV
	wcKernelInvalidated = 1 << 2 // IB_WC_WITH_INVALIDATE of the kernel, IBV_WC_IP_CSUM_OK of libibverbs
)

// quirks is the table. Rows with a Source that says "not run" were read, and were never tried on
// the device.
var quirks = []Quirks{
	{
		Driver: "rxe", Proved: true,
		InvalidatedBit: wcKernelInvalidated,
		Source: "run on Linux 6.1: the driver reports remote invalidation with the kernel's bit; a peer reaches all of the " +
			"region behind a window (check_rkey), and can invalidate windows of other connections; " +
			"invalidating a window that is not bound, which a peer can cause, is a NULL dereference in rxe_invalidate_mw",
	},
	{
		Driver: "siw", Proved: true,
		AddressOffsets: true, LateReads: true, RepeatsHandles: true, WeakRights: true, MemlockOfRoot: true,
		NoInlineInvalidate: true,
		Source: "run on Linux 6.1: siw_reg_user_mr ignores the offset; a Read of two elements fills the first and " +
			"succeeds; a Send completes when TCP has it, before the Reads before it; handles are 24 random bits; Reads are not checked " +
			"for the right to read; no windows, and wc_flags is always 0; memory is charged to root too; an inline Send With " +
			"Invalidate ends the connection as if the peer had closed it (siw_activate_tx_from_sq)",
	},
	{
		Driver: "mlx5_core", InvalidatedBit: wcInvalidated, Windows: WindowsTrusted,
		Source: "rdma-core providers/mlx5 and tests/test_mr.py, not run: type 2B windows, which rdma-core's tests invalidate " +
			"from both sides; IBV_WC_WITH_INV",
	},
	{
		Driver: "mlx4_core", InvalidatedBit: wcInvalidated,
		Source: "rdma-core providers/mlx4, not run: type 2B windows, IBV_WC_WITH_INV",
	},
	{
		Driver: "irdma", InvalidatedBit: wcInvalidated, ReadIntoRemote: true,
		Source: "rdma-core providers/irdma/uverbs.c, not run: RoCE v2 and iWARP; binds windows of type 1 only " +
			"(irdma_upost_send). " + readSinks,
	},
	{
		Driver: "cxgb4", InvalidatedBit: wcInvalidated, ReadIntoRemote: true,
		Source: "rdma-core providers/cxgb4, qp.c and cq.c, not run: iWARP; refuses a Read of two elements (build_rdma_read), " +
			"which the provider never posts. " + readSinks,
	},
	{
		Driver: "bnxt_en",
		Source: "rdma-core providers/bnxt_re/verbs.c, not run: RoCE; the device tells the library of an invalidation by the peer " +
			"(BNXT_RE_RC_FLAGS_INV_MASK), and the library tells nobody (bnxt_re_poll_success_rcqe)",
	},
	{
		Driver:  "efa",
		Refused: "EFA has no reliable connections (RC queue pairs), which RPC-over-RDMA needs; use TCP, or the provider iwarp",
		Source:  "rdma-core providers/efa, not run: only UD and SRD queue pairs",
	},
}

// readSinks is why rows have ReadIntoRemote.
const readSinks = "iWARP writes the Response to a Read through a key that the peer is told (RFC 5040 Section 4.4), so Linux registers " +
	"the memory for remote writing on every iWARP adapter (rdma_rw_init_one_mr, drivers/infiniband/core/rw.c)"

// QuirksOf returns the row of a driver. known is false for a driver that the table does not have;
// such a row has Driver set, and nothing that needs trust.
func QuirksOf(driver string) (q Quirks, known bool) {
	for _, q := range quirks {
		if q.Driver == driver {
			return q, true
		}
	}
	return Quirks{Driver: driver, InvalidatedBit: wcInvalidated, ReadIntoRemote: true, Source: "no row in the table: the careful choice"}, false
}

// parents has the drivers whose PCI device belongs to another driver, by that driver. The RDMA device of
// irdma is a child of the Ethernet driver's device (ib_register_device, drivers/infiniband/hw/irdma/verbs.c).
var parents = map[string]string{"ice": "irdma", "i40e": "irdma", "idpf": "irdma"}

// DriverOf returns the name of the kernel driver of an RDMA device, given the directory
// /sys/class/infiniband. A device without hardware behind it is one of the kernel's software
// devices, which differ in their transport: rxe is InfiniBand and siw is iWARP.
func DriverOf(class, device string, iwarp bool) string {
	target, err := os.Readlink(filepath.Join(class, device, "device", "driver"))
	switch {
	case err == nil:
		// The driver of a subfunction is called mlx5_core.sf.
		driver, _, _ := strings.Cut(strings.TrimSuffix(filepath.Base(target), "_pci"), ".")
		return cmp.Or(parents[driver], driver)
	case iwarp:
		return "siw"
	}
	return "rxe"
}
