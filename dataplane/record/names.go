package record

// FreedNames are the reasons of EvFreed, ReadNames the outcomes of a read, as logs, metrics and tools write them. "" is none.
var (
	FreedNames = [...]string{
		FreedCompleted: "completed", FreedReleased: "released", FreedRevoked: "revoked", FreedExpired: "expired",
		FreedPoisoned: "poisoned", FreedDuplicate: "duplicate", FreedClosed: "closed", FreedLost: "lost",
	}
	ReadNames = [...]string{
		ReadOK: "ok", ReadStale: "stale", ReadUnproven: "unproven", ReadFailed: "failed",
		ReadTimeout: "timeout", ReadCancelled: "cancelled", ReadLost: "lost",
	}
)
