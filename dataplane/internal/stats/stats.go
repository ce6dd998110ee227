// Package stats names counters and gauges as kvl_stats does.
package stats

import (
	"reflect"
	"strings"
	"unicode"
)

// Each visits the exported fields of a struct under their snake case names.
func Each(s any, visit func(name string, v reflect.Value)) {
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() {
			visit(Name(f.Name), v.Field(i))
		}
	}
}

// Name is the snake case name of a field.
func Name(name string) string {
	name = strings.ReplaceAll(name, "IDs", "Ids") // else the plural s would be a word
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(rune(name[i-1])) || i+1 < len(name) && unicode.IsLower(rune(name[i+1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
