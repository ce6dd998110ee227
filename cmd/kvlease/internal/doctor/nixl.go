package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
)

const nixlFix = "pip install nixl, and KVLEASE_NIXL=its site-packages; from this source tree: make deps"

func nixlLibrary(_ context.Context, s *System) []Result {
	const name = "NIXL"
	lib, err := s.FindNIXL()
	switch {
	case err != nil:
		return ill(name, Fail, err.Error(), "without it engines have no transport but loopback", nixlFix)
	case lib.File == "":
		return one(name, Skip, "none is near; the system's loader may know one")
	case lib.Plugins == "":
		return ill(name, Fail, lib.File+", and no plugins beside it", "the UCX plugin is what moves bytes", nixlFix+"; or NIXL_PLUGIN_DIR")
	}
	value := fmt.Sprintf("%s, %s (found by: %s)", lib.Version, lib.File, lib.How)
	var major, minor int
	if n, _ := fmt.Sscanf(lib.Version, "%d.%d", &major, &minor); n == 2 && (major < 1 || major == 1 && minor < 5) {
		return ill(name, Warn, value, "before 1.5 it forgets an engine with the first read that finds it gone, and then never tells whether the others that are under way have ended: "+
			"their blocks stay aside until this engine is closed", "pip install 'nixl>=1.5'")
	}
	return one(name, Pass, value)
}

// nixlLoads opens an agent in this process and says which UCX came with it, and with which of its modules.
func nixlLoads(ctx context.Context, s *System) []Result {
	const name = "UCX"
	if s.LoadNIXL == nil {
		return one(name, Skip, "not loaded: --no-load")
	}
	lib, err := s.FindNIXL()
	if err != nil {
		return one(name, Skip, "there is no NIXL to load")
	}
	began := time.Now()
	_, err = within(ctx, s.Patience, func() (struct{}, error) { return struct{}{}, s.LoadNIXL(lib) })
	if errors.Is(err, context.Canceled) {
		return unread(name, err)
	}
	if err != nil {
		fix := "LD_DEBUG=libs kvlease doctor shows what the loader misses; " + nixlFix
		if slices.ContainsFunc(mapped(filepath.Join(s.Proc, "self")), func(f string) bool { return strings.HasPrefix(filepath.Base(f), "libucp") }) {
			fix = "all of it was loaded, and what UCX writes on stderr says what it lacks here (UCX_LOG_LEVEL=info says more): often /dev/shm or /sys, " +
				"or what UCX_TLS and UCX_NET_DEVICES leave"
		}
		if errors.Is(err, errSilent) {
			fix = "UCX_LOG_LEVEL=info kvlease doctor says where it stands; where a GPU or a NIC does not answer its own lines above say so, and dmesg"
		}
		return ill(name, Fail, err.Error(), "an engine fails in the same way when it opens", "%s", fix)
	}
	took := time.Since(began)
	found := cnixl.MappedUCX()
	if len(found) == 0 {
		return one(name, Pass, fmt.Sprintf("an agent opened in %s", text.Span(took)))
	}
	value := fmt.Sprintf("%s, an agent opened in %s", found[len(found)-1].Version, text.Span(took))
	loaded, missing := modules(filepath.Dir(found[len(found)-1].File), mapped(filepath.Join(s.Proc, "self")))
	value += "; modules: " + strings.Join(loaded, ", ")
	if len(missing) > 0 {
		value += "; there and not loaded: " + strings.Join(missing, ", ")
	}
	h := s.fabric()
	for _, need := range []struct {
		there  bool
		module string
		fix    string
	}{
		{len(h.GPUs) > 0, "cuda", "libcuda.so.1 and libnvidia-ml.so.1 must be where the loader finds them (ldconfig -p)"},
		{len(rdma.Usable(h.NICs)) > 0, "ib", "libibverbs and the NIC's provider (rdma-core) must be where the loader finds them"},
	} {
		if need.there && len(loaded)+len(missing) > 0 && !slices.Contains(loaded, need.module) {
			return ill(name, Fail, value, "without the module "+need.module+" UCX cannot use what is here", "%s", need.fix)
		}
	}
	return one(name, Pass, value)
}

// moduleFile is a loadable part of UCX: libuct_ib_mlx5.so.0.0.0.
var moduleFile = regexp.MustCompile(`^libuc[tm]_([a-z0-9_]+)\.so`)

// modules tells which of the UCX modules in the folder beside the library are mapped.
func modules(dir string, maps []string) (loaded, missing []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "ucx", "*.so*"))
	for _, f := range files {
		m := moduleFile.FindStringSubmatch(filepath.Base(f))
		switch {
		case m == nil || slices.Contains(loaded, m[1]) || slices.Contains(missing, m[1]):
		case slices.ContainsFunc(maps, func(name string) bool { return filepath.Base(name) == filepath.Base(f) }):
			loaded = append(loaded, m[1])
		default:
			missing = append(missing, m[1])
		}
	}
	missing = slices.DeleteFunc(missing, func(m string) bool { return slices.Contains(loaded, m) })
	return loaded, missing
}

// mapped are the files that a process has mapped, each once.
func mapped(dir string) (files []string) {
	text, _ := os.ReadFile(filepath.Join(dir, "maps"))
	for line := range strings.Lines(string(text)) {
		if i := strings.IndexByte(line, '/'); i >= 0 {
			if f := strings.TrimSuffix(strings.TrimSpace(line[i:]), " (deleted)"); !slices.Contains(files, f) {
				files = append(files, f)
			}
		}
	}
	return files
}

// copies looks for a second NIXL or UCX in the process.
func copies(_ context.Context, s *System) []Result {
	const name = "copies"
	maps := mapped(filepath.Join(s.Proc, s.PID))
	if len(maps) == 0 {
		return one(name, Skip, "what the process has mapped may not be seen")
	}
	var nixl, ucx []string
	for _, f := range maps {
		switch {
		case cnixl.IsUCX(f):
			ucx = append(ucx, f)
		case cnixl.IsNIXL(f):
			nixl = append(nixl, f)
		}
	}
	whose := "in this process, after the load"
	if !s.self() {
		whose = "in process " + s.PID
	}
	switch {
	case len(nixl) > 1 || len(ucx) > 1:
		return ill(name, Fail, strings.Join(append(nixl, ucx...), ", "), "two copies of UCX patch libc's functions for memory in turn, and a NIXL agent of one knows nothing of the other's",
			"one NIXL for all: KVLEASE_NIXL= the one that the engine's own code loads; remove the other from LD_LIBRARY_PATH and from the Python environment")
	case len(nixl)+len(ucx) == 0:
		return one(name, Skip, "neither NIXL nor UCX "+whose)
	case len(ucx) == 0:
		return one(name, Pass, "one NIXL and no UCX "+whose)
	case len(nixl) == 0:
		return one(name, Pass, "one UCX and no NIXL "+whose)
	}
	return one(name, Pass, fmt.Sprintf("one NIXL and one UCX %s", whose))
}

// environment looks at what the user has told UCX and NIXL.
func environment(_ context.Context, s *System) []Result {
	const name = "environment"
	all, err := s.Environ()
	if err != nil {
		return unread(name, err)
	}
	var set []string
	var lines []Result
	for _, v := range all {
		key, value, _ := strings.Cut(v, "=")
		if !strings.HasPrefix(key, "UCX_") && !strings.HasPrefix(key, "NIXL_") && !strings.HasPrefix(key, "KVLEASE_") {
			continue
		}
		set = append(set, text.Printable(v))
		if why, fix := s.harm(key, value); why != "" {
			lines = append(lines, Result{Name: key, State: Warn, Value: text.Printable(value), Why: why, Fix: fix})
		}
	}
	slices.Sort(set)
	value := "neither UCX_ nor NIXL_ nor KVLEASE_ is set"
	if len(set) > 0 {
		value = strings.Join(set, " ")
	}
	return append(one(name, Pass, value), lines...)
}

// harm says what a setting does that nobody wants.
func (s *System) harm(key, value string) (why, fix string) {
	h := s.fabric()
	list := strings.Split(value, ",")
	switch key {
	case "UCX_HANDLE_ERRORS":
		if value != "none" && value != "" {
			return "UCX then takes SIGSEGV, SIGBUS and SIGFPE: the core's recovery and the engine's own crash handler are gone", "unset " + key
		}
	case "UCX_NET_DEVICES":
		if value == "" {
			return "UCX takes an empty list at its word: it has no network, and no agent opens", "unset " + key
		}
		if rdma.EmptyList(value) { // behind ^: none is left out
			return "", ""
		}
		for _, d := range list {
			device, _, _ := strings.Cut(strings.TrimPrefix(d, "^"), ":")
			if device != "all" && !slices.ContainsFunc(h.NICs, func(n rdma.NIC) bool { return n.Name == device }) && rdma.Text(s.Sys, "class/net", device, "ifindex") == "" {
				return "there is no device " + text.Printable(device) + " here: UCX goes on without it, perhaps over TCP", "unset " + key + ", or see the settings below"
			}
		}
	case "UCX_TLS":
		if rdma.EmptyList(value) {
			return "UCX refuses an empty list: no agent opens", "unset " + key
		}
		if unknown := rdma.UnknownTransports(value); len(unknown) > 0 {
			return fmt.Sprintf("%q is no transport that this kvlease knows of UCX %s, where case and blanks count; one that the UCX here does not have either it leaves out, and if no other is left no agent opens", unknown[0], rdma.KnownUCX),
				"if ucx_info -d has it, none; else unset " + key + ", or names as ucx_info -d has them, with commas and no blanks between"
		}
		if len(rdma.Usable(h.NICs)) > 0 && !rdma.Verbs(value) {
			return "it leaves no transport over the RDMA NICs", "unset " + key + ", or have rc among them"
		}
	case "UCX_IB_GPU_DIRECT_RDMA":
		switch is, ok := rdma.Ternary(value); {
		case !ok:
			return "UCX takes yes, no or try: it opens no NIC with anything else", "unset " + key + ", or yes"
		case is == "no" && len(h.GPUs) > 0:
			return "NICs may not reach GPU memory: each read goes through host memory", "unset " + key
		}
	case "NIXL_PLUGIN_DIR":
		if found, _ := filepath.Glob(filepath.Join(value, "libplugin_UCX.so*")); len(found) == 0 {
			return "there is no libplugin_UCX.so: no agent gets a backend", "unset " + key
		}
	}
	return "", ""
}
