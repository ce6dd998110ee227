package sim

// accounts holds what the readers of a rank are said to have against what the rank holds: every lease is in exactly one account.
func (l *ledger) accounts() {
	leases, blocks := uint64(0), uint64(0)
	for i := range l.r.leases.Accounts() {
		a, _ := l.r.leases.Account(i)
		leases, blocks = leases+a.Leases, blocks+a.Blocks
	}
	if held, under := uint64(l.r.leases.Held()), l.r.leases.Blocks(); leases != held || blocks != under {
		l.w.broke(Broken, l.r.who(), "", "rank %d: %d leases and %d blocks are held, its readers have %d and %d", l.r.n, held, under, leases, blocks)
	}
}
