package translate

import (
	"github.com/rdmabridge/rdmabridge/configs"
	"github.com/rdmabridge/rdmabridge/internal/audit"
)

var auditClasses = map[string]audit.Classes{
	configs.AuditChanges: audit.Changes, configs.AuditOpens: audit.Opens, configs.AuditDenials: audit.Denials,
}

// Audit translates what the audit log has lines for, and which names they do not show.
func Audit(c *configs.AuditLog, n *configs.Names) (a audit.Choice) {
	a.Exports, a.Hide = c.Exports, n.Hide
	a.Deny = c.OnFailure == configs.AuditDeny
	for _, o := range c.Operations {
		a.Classes |= auditClasses[o]
	}
	for _, p := range c.Clients {
		a.Clients = append(a.Clients, p.Prefix)
	}
	for _, u := range c.UIDs {
		low, high := u.Range()
		a.UIDs = append(a.UIDs, audit.IDs{Low: low, High: high})
	}
	return a
}
