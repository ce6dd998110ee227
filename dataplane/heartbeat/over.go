package heartbeat

// Over is why an engine is no more, and what was tracked there is lost.
type Over uint8

const (
	Died     Over = iota // its process is gone
	Withdrew             // it has given its memory up on purpose, asleep or closed
	Misfits              // its answer is of an engine that does not fit this one
	Another              // another engine answers at its address
	Replaced             // it has come back as another boot
	Removed              // it was removed here
	Unheard              // it was not heard for so long that no lease there can stand
	oversN
)

// What an Over is in a line, behind the name of the engine.
var overTexts = [oversN]string{
	Died: "is gone", Withdrew: "has given its memory up", Misfits: "does not fit this one", Another: "has another one at its address",
	Replaced: "has come back as another boot", Removed: "was removed here",
	Unheard: "was not heard for as long as a lease there can stand",
}

// String is the reason in a line of the log, where the engine is "the engine that holds its blocks".
func (o Over) String() string { return overTexts[o] }

// OverOf is the reason that a host has told as a number; one that no engine can be told of is Died.
func OverOf(n uint32) Over {
	if n > uint32(Another) {
		return Died
	}
	return Over(n)
}
