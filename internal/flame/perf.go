package flame

import (
	"bufio"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/kvlease/kvlease/"

// ReadScript reads what this prints; the first frame of each stack is the name of its thread:
//
//	perf script --no-inline -F comm,tid,period,event,ip,sym,dso
func ReadScript(r io.Reader) ([]Stack, error) {
	var stacks []Stack
	var s *Stack
	in := bufio.NewScanner(r)
	in.Buffer(nil, lineMax)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		switch {
		case strings.TrimSpace(line) == "":
			s = nil
		case line[0] != ' ' && line[0] != '\t':
			name, weight, ok := parseHeader(line)
			if !ok {
				return nil, fmt.Errorf("perf script, line %d: no sample: %q", n, line)
			}
			stacks = append(stacks, Stack{[]Frame{{Name: name}}, weight})
			s = &stacks[len(stacks)-1]
		case s == nil:
			return nil, fmt.Errorf("perf script, line %d: a frame without a sample", n)
		default:
			f, ok := parseScriptFrame(line)
			if !ok {
				return nil, fmt.Errorf("perf script, line %d: no frame: %q", n, line)
			}
			if f.Name != "" {
				s.Frames = slices.Insert(s.Frames, 1, f)
			}
		}
	}
	return stacks, in.Err()
}

// parseHeader takes "a thread 12 1001001 cpu-clock: " apart; the name may have blanks.
func parseHeader(line string) (name string, weight int64, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 4 || !strings.HasSuffix(fields[len(fields)-1], ":") {
		return "", 0, false
	}
	weight, err := strconv.ParseInt(fields[len(fields)-2], 10, 64)
	return clean(strings.Join(fields[:len(fields)-3], " ")), weight, err == nil && weight >= 0
}

// parseScriptFrame takes "  1f2e name (file)" apart. What has neither name nor file is a wrong turn of the unwinder, and no name.
func parseScriptFrame(line string) (Frame, bool) {
	line = strings.TrimSpace(strings.Replace(line, " (deleted))", ")", 1))
	_, line, found := strings.Cut(line, " ")
	at := strings.LastIndex(line, " (")
	if !found || at < 0 || !strings.HasSuffix(line, ")") {
		return Frame{}, false
	}
	name, file := line[:at], filepath.Base(line[at+2:len(line)-1])
	if name == "[unknown]" {
		if file == "[unknown]" {
			return Frame{}, true
		}
		name = "(no name)"
	}
	name = strings.ReplaceAll(strings.TrimSuffix(name, ".abi0"), module, "")
	file = strings.Trim(file, "[]")
	if strings.HasPrefix(file, "kernel.") || strings.HasPrefix(file, "guest.kernel") {
		file = "kernel"
	}
	return Frame{clean(name), clean(file)}, true
}
