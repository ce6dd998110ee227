package pages

import "github.com/kvlease/kvlease/internal/plural"

// Untaken says how many bytes no step of a context has taken, and of whose words: a rank hears its host, any other context its hooks.
func Untaken(role string, bytes uint64) string {
	whose := "its hooks were told"
	if role == "rank" {
		whose = "its host has said"
	}
	return plural.Counted(bytes, "byte", "bytes") + " of what " + whose + " no step has taken"
}
