// Package topology says which ranks of an owner a reader's rank talks to, and which bytes it takes from each.
//
// An engine has PP stages of TP ranks; a rank's number is pp x TP + tp. Stages hold layers, ranks hold heads.
package topology

import "errors"

// ErrTopology is wrapped by every error: sizes that do not divide each other.
var ErrTopology = errors.New("topology")

// Shape is the size of an engine.
type Shape struct{ TP, PP uint32 }

// Ranks is the number of all ranks.
func (s Shape) Ranks() uint32 { return s.TP * s.PP }
