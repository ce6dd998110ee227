package top

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Order is what engines are sorted by.
type Order int

// Orders.
const (
	ByTrouble Order = iota
	ByName
	ByLeases
	BySlack
	ByBeats
	ByReads
	orders
)

// String is the order's name.
func (o Order) String() string {
	return [...]string{"trouble", "name", "bytes held", "slack", "beats", "reads"}[o]
}

// sortEngines puts them in order; where they are equal by engine, its host before its ranks.
func sortEngines(list []*Engine, by Order, reverse bool) {
	slices.SortStableFunc(list, func(a, b *Engine) int {
		c := 0
		switch by {
		case ByTrouble: // who can still be helped before who is gone
			c = cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(boolInt(a.gone()), boolInt(b.gone())))
		case ByLeases:
			c = cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Leases, a.Leases))
		case BySlack:
			c = compareSpans(a.Slack, b.Slack)
		case ByBeats:
			c = -compareNumbers(a.Beats, b.Beats)
		case ByReads:
			c = cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Reads, a.Reads))
		}
		if c == 0 {
			c = cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Rank, b.Rank), cmp.Compare(boolInt(a.Role == "rank"), boolInt(b.Role == "rank")), strings.Compare(a.key, b.key))
			if by != ByName {
				return c
			}
		}
		if reverse {
			return -c
		}
		return c
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareNumbers puts what has none first.
func compareNumbers(a, b *float64) int {
	switch {
	case a != nil && b != nil:
		return cmp.Compare(*a, *b)
	case a != nil:
		return 1
	case b != nil:
		return -1
	}
	return 0
}

// compareSpans puts what has none last.
func compareSpans(a, b *time.Duration) int {
	switch {
	case a != nil && b != nil:
		return cmp.Compare(*a, *b)
	case a != nil:
		return -1
	case b != nil:
		return 1
	}
	return 0
}

// sortPeers puts trouble first, then who holds most.
func sortPeers(list []Peer) {
	slices.SortStableFunc(list, func(a, b Peer) int {
		return cmp.Or(
			cmp.Compare(b.Level, a.Level), compareSpans(a.Slack, b.Slack), cmp.Compare(boolInt(a.Leases+a.Reads == 0), boolInt(b.Leases+b.Reads == 0)),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Leases, a.Leases), strings.Compare(a.Name, b.Name), strings.Compare(a.key, b.key),
		)
	})
}
