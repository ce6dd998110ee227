package rdma

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Told gives what a user has told UCX: by the environment, which counts first, else by a line of a ucx.conf in /etc/ucx, in etc/ucx beside the folder of
// UCX's own library, in HOME, in UCX_CONFIG_DIR or in the working folder, of which the last one counts (openucx/ucx, ucs/config/parser.c,
// ucs_config_parse_config_files). process is the folder of the process in procfs, through which its files are seen; where its UCX is shows once that
// is loaded. Sections of such a file hold for some processors only; here they count.
func Told(env func(name string) (string, bool), process string) func(name string) (string, bool) {
	lines := map[string]string{}
	folders := []string{"/etc/ucx"}
	if library := mappedUCS(process); library != "" {
		folders = append(folders, filepath.Join(filepath.Dir(library), "../etc/ucx"))
	}
	for _, name := range []string{"HOME", "UCX_CONFIG_DIR"} {
		if dir, _ := env(name); dir != "" {
			folders = append(folders, dir)
		}
	}
	for _, dir := range folders {
		settings(Text(process, "root", dir, "ucx.conf"), lines)
	}
	settings(Text(process, "cwd", "ucx.conf"), lines)
	return func(name string) (string, bool) {
		if value, set := env(name); set {
			return value, true
		}
		value, set := lines[name]
		return value, set
	}
}

// ucs is the library of UCX that reads its settings, as distributions and wheels name it: libucs.so.0, libucs-14c218c5.so.0.0.0.
var ucs = regexp.MustCompile(`/.*/libucs(-[0-9a-f]+)?\.so[.0-9]*$`)

// mappedUCS is the first one that a process has mapped; empty: none, or it may not be seen.
func mappedUCS(process string) string {
	maps, err := os.Open(filepath.Join(process, "maps"))
	if err != nil {
		return ""
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if at := ucs.FindString(lines.Text()); at != "" {
			return at
		}
	}
	return ""
}

// settings adds those of a ucx.conf, read as UCX's parser does (openucx/ucx, ucs/config/ini.c): name=value or name:value a line, with blanks around both; a
// line that begins with ; or # is a comment, and so is the rest of one behind a blank and ;. A line that is set in is a new value of the name before it.
func settings(text string, lines map[string]string) {
	last := ""
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		inset := strings.TrimLeft(line, blanks) != line
		line = strings.Trim(line, blanks)
		switch {
		case line == "" || line[0] == ';' || line[0] == '#':
			continue
		case last != "" && inset:
			lines[last] = line
			continue
		case line[0] == '[':
			last = ""
			continue
		}
		if at := inlineComment.FindStringIndex(line); at != nil {
			line = line[:at[0]]
		}
		if at := strings.IndexAny(line, "=:"); at >= 0 {
			last = strings.Trim(line[:at], blanks)
			lines[last] = strings.Trim(line[at+1:], blanks)
		}
	}
}

// blanks are those of isspace in C.
const blanks = " \t\n\v\f\r"

// inlineComment is where a comment behind a setting begins.
var inlineComment = regexp.MustCompile(`\s;`)

// Takes tells which NICs UCX uses of those that it can, by what its user says in UCX_TLS and UCX_NET_DEVICES. Empty is not said. Their form is that of
// UCX's lists (openucx/ucx, ucs/config/parser.c, "allow list"): names, all, or, behind ^, all but what is named.
func Takes(tls, netDevices string) func(nic string) bool {
	if !Verbs(tls) {
		return func(string) bool { return false }
	}
	names, not := listOf(netDevices)
	if len(names) == 0 || !not && slices.Contains(names, "all") {
		return func(string) bool { return true }
	}
	return func(nic string) bool {
		return not != slices.ContainsFunc(names, func(name string) bool {
			device, _, _ := strings.Cut(name, ":")
			return device == nic
		})
	}
}

// Verbs tells whether UCX_TLS leaves UCX a transport over RDMA NICs.
func Verbs(tls string) bool {
	names, not := listOf(tls)
	has := func(name string) bool { return slices.Contains(names, name) }
	if not {
		return !has("ib") && !(has("rc") && has("dc") && has("ud"))
	}
	return len(names) == 0 || slices.ContainsFunc(names, func(name string) bool {
		base, _, _ := strings.Cut(strings.TrimPrefix(name, `\`), "_")
		return base == "ib" || base == "rc" || base == "dc" || base == "ud" || name == "all"
	})
}

// KnownUCX are the versions whose transports are known here.
const KnownUCX = "1.20 to 1.23"

// transports begin the names of UCX's transports and of its words for several (openucx/ucx, uct and ucp/core/ucp_context.c, KnownUCX): rc is the
// beginning of rc_x, rc_mlx5 and others.
var transports = []string{"all", "ib", "rc", "dc", "ud", "srd", "gga", "tcp", "self", "sm", "shm", "mm", "posix", "sysv", "xpmem", "knem", "cma", "cuda", "gdr", "rocm",
	"ze", "ugni", "gaudi"}

// UnknownTransports are the names in UCX_TLS that are no transport of the versions of UCX that are known here, in which case and blanks count. A later
// version may have them.
func UnknownTransports(tls string) (unknown []string) {
	names, _ := listOf(tls)
	for _, name := range names {
		base, _, _ := strings.Cut(strings.TrimPrefix(name, `\`), ":")
		base, _, _ = strings.Cut(base, "_")
		if !slices.Contains(transports, base) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// EmptyList tells whether a list of UCX's names nothing: with such a UCX_TLS it opens for nobody, with such a UCX_NET_DEVICES it has no network.
func EmptyList(list string) bool {
	names, _ := listOf(list)
	return len(names) == 0
}

// listOf reads a list as UCX does: what is named, or, behind ^, all but what is named. UCX takes the blanks around a name for a part of it.
func listOf(text string) (names []string, not bool) {
	text, not = strings.CutPrefix(text, "^")
	for name := range strings.SplitSeq(text, ",") {
		if name != "" {
			names = append(names, name)
		}
	}
	return names, not
}

// Ternary reads a setting that is yes, no or try to UCX (ucs/config/parser.c, ucs_config_sscanf_ternary); false: it is none of these, and UCX does not open.
func Ternary(text string) (value string, ok bool) {
	switch strings.ToLower(text) {
	case "y", "yes", "1":
		return "yes", true
	case "n", "no", "0":
		return "no", true
	case "try", "maybe":
		return "try", true
	}
	return "", false
}
