// Package jsons has what the reports for programs have in common.
package jsons

import "encoding/json"

// List is a list of a report: [] where there is nothing, so that whoever reads it finds a list in any case. Its fields have no omitempty.
type List[T any] []T

// MarshalJSON is that of the list, [] if it is nil.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}
