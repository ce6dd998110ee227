package probe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// mapping is a part of a file in a process's memory.
type mapping struct {
	start, end, offset uint64
	executable         bool
	dev                string // major:minor, hex
	inode              uint64
	path               string // as the process sees it
	deleted            bool   // the name has gone, or belongs to another file by now
}

var errMaps = errors.New("not a line of /proc/PID/maps")

// parseMapping reads a line of /proc/PID/maps. ok is false for memory without a file.
func parseMapping(line string) (m mapping, ok bool, err error) {
	var fields [5]string
	rest := line
	for i := range fields {
		if fields[i], rest, _ = strings.Cut(strings.TrimLeft(rest, " "), " "); fields[i] == "" {
			return m, false, fmt.Errorf("%w: %.100q", errMaps, line)
		}
	}
	from, to, found := strings.Cut(fields[0], "-")
	var errs [4]error
	m.start, errs[0] = strconv.ParseUint(from, 16, 64)
	m.end, errs[1] = strconv.ParseUint(to, 16, 64)
	m.offset, errs[2] = strconv.ParseUint(fields[2], 16, 64)
	m.inode, errs[3] = strconv.ParseUint(fields[4], 10, 64)
	if !found || errors.Join(errs[:]...) != nil || len(fields[1]) != 4 || m.end < m.start {
		return m, false, fmt.Errorf("%w: %.100q", errMaps, line)
	}
	m.executable, m.dev = fields[1][2] == 'x', fields[3]
	path := strings.TrimLeft(rest, " ")
	if !strings.HasPrefix(path, "/") || m.inode == 0 {
		return m, false, nil
	}
	m.path, m.deleted = strings.CutSuffix(path, " (deleted)")
	m.path = strings.ReplaceAll(m.path, `\012`, "\n") // all that the kernel escapes
	return m, true, nil
}

// parseMaps gives the executable parts of files, one a file.
func parseMaps(r io.Reader) ([]mapping, error) {
	var list []mapping
	seen := map[fileID]bool{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<16)
	for lines.Scan() {
		m, ok, err := parseMapping(lines.Text())
		if err != nil {
			return nil, err
		}
		if id := (fileID{m.dev, m.inode}); ok && m.executable && !seen[id] {
			seen[id] = true
			list = append(list, m)
		}
	}
	return list, lines.Err()
}
