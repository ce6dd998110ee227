package record

import "sync/atomic"

// BeginEra makes epoch and secret what parameters are made with from now on. One writer, off the step, while no lease is granted.
//
// Edge E1: era is odd while the words change, and even behind them; pairs with E2 in ReadEra and in kvl_params and kvl_grant.
func (c *Control) BeginEra(epoch uint64, secret [2]uint64) {
	atomic.AddUint64(&c.Era, 1)
	atomic.StoreUint64(&c.Epoch, epoch)
	atomic.StoreUint64(&c.Secret[0], secret[0])
	atomic.StoreUint64(&c.Secret[1], secret[1])
	atomic.AddUint64(&c.Era, 1)
}

// ReadEra gives the words of one era. false: they change just now, which takes three stores; ask again.
//
// Edge E2, see BeginEra.
func (c *Control) ReadEra() (epoch uint64, secret [2]uint64, ok bool) {
	before := atomic.LoadUint64(&c.Era)
	epoch = atomic.LoadUint64(&c.Epoch)
	secret = [2]uint64{atomic.LoadUint64(&c.Secret[0]), atomic.LoadUint64(&c.Secret[1])}
	return epoch, secret, before&1 == 0 && atomic.LoadUint64(&c.Era) == before
}
