package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

func shipped(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSystemdTakesTheUnits: it ignores what it does not understand, and says so.
func TestSystemdTakesTheUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		require.Skip(t, "systemd", err.Error())
	}
	export := strings.Replace(shipped(t, "kvlease-export.service"), "/usr/local/bin/kvlease", "/bin/true", 1)
	limits := shipped(t, "engine-limits.conf")
	all := regexp.MustCompile(`(?m)^#([A-Z]\w+=)`).ReplaceAllString(limits, "$1")
	if len(regexp.MustCompile(`(?m)^\w+=`).FindAllString(all, -1)) < 15 {
		t.Fatalf("the directives that are commented out were not found:\n%s", all)
	}
	for _, tc := range []struct {
		name, unit, dropIn, says string
	}{
		{"the exporter", export, "", ""},
		{"an engine", "[Service]\nExecStart=/bin/true\n", limits, ""},
		{"an engine with everything that is commented out", "[Service]\nExecStart=/bin/true\n", all, ""},
		{"a directive that is none", export + "LimitMEMLOK=1\n", "", "LimitMEMLOK"},
		{"a value that is none", "[Service]\nExecStart=/bin/true\n", strings.Replace(limits, "LimitMEMLOCK=infinity", "LimitMEMLOCK=lots", 1), "lots"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			unit, dropIn := filepath.Join(dir, "kvlease-test@.service"), filepath.Join(dir, "kvlease-test@.service.d", "kvlease.conf")
			if err := os.Mkdir(filepath.Dir(dropIn), 0o755); err != nil {
				t.Fatal(err)
			}
			for path, text := range map[string]string{unit: tc.unit, dropIn: tc.dropIn} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			said, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", strings.Replace(unit, "@", "@3", 1)).CombinedOutput()
			if err != nil || (len(said) > 0) != (tc.says != "") || !strings.Contains(string(said), tc.says) {
				t.Errorf("%v, it says %q, want %q", err, said, tc.says)
			}
		})
	}
}

// service is the value of a directive of a unit.
func service(t *testing.T, text, directive string) string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + directive + `=(.*)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no %s", directive)
	}
	return m[1]
}

// TestTheExporterSeesEnginesOfOthersWithTheRightsOfItsUnit runs what the unit runs, as root with the unit's capabilities alone, beside an engine
// of another user.
func TestTheExporterSeesEnginesOfOthersWithTheRightsOfItsUnit(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Getuid() != 0 {
		require.Skip(t, "root", fmt.Sprintf("users and capabilities are set here (%v)", err))
	}
	unit := shipped(t, "kvlease-export.service")
	kvlease := filepath.Join(t.TempDir(), "kvlease") // where another user reaches it
	text, err := os.ReadFile(tool(t))
	if err == nil {
		err = os.WriteFile(kvlease, text, 0o755)
	}
	for dir := filepath.Dir(kvlease); err == nil && dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		err = os.Chmod(dir, 0o755)
	}
	pages := require.Shm(t)
	if err == nil {
		err = os.Chmod(pages, 0o1777)
	}
	if err != nil {
		t.Fatal(err)
	}
	engine := exec.CommandContext(t.Context(), setpriv, "--reuid", "65534", "--regid", "65534", "--clear-groups",
		kvlease, "node", "--transport", "loopback", "--engine-id", "other", "--config", fmt.Sprintf(`{"stats_page":%q}`, pages))
	engine.Dir = "/"
	in, _ := child.Pipes(t, engine)
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = engine.Wait() })
	start := service(t, unit, "ExecStart")
	if !strings.HasPrefix(start, "/usr/local/bin/kvlease export --listen ") {
		t.Fatalf("ExecStart is %q", start)
	}
	look := func(capabilities string) string {
		args := []string{"--bounding-set", "-all" + capabilities, "--inh-caps", "-all", "--no-new-privs", kvlease, "export", "--dir", pages, "--once"}
		said, err := exec.CommandContext(t.Context(), setpriv, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, said)
		}
		return string(said)
	}
	var granted strings.Builder
	for _, c := range strings.Fields(service(t, unit, "CapabilityBoundingSet")) {
		granted.WriteString(",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_")))
	}
	up := regexp.MustCompile(`(?m)^kvlease_up\{.*engine="other".*\} 1$`)
	await.True(t, "the engine is seen", func() bool { return up.MatchString(look(granted.String())) })
	if up.MatchString(look("")) {
		t.Error("it is seen without a capability, too: the unit needs none")
	}
}

// TestDockerKnowsTheFlags asks the client only: it reads the command before it looks for a daemon, and finds none.
func TestDockerKnowsTheFlags(t *testing.T) {
	docker, err := exec.LookPath("docker")
	if err != nil {
		require.Skip(t, "docker", err.Error())
	}
	read := func(line string) string {
		args := strings.Fields(strings.NewReplacer("IMAGE", "image", "ENGINE", "engine", "...", "").Replace(line))
		cmd := exec.CommandContext(t.Context(), docker, args[1:]...)
		cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+filepath.Join(t.TempDir(), "none.sock"))
		said, _ := cmd.CombinedOutput()
		return string(said)
	}
	understood := func(said string) bool {
		return strings.Contains(said, "Cannot connect") || strings.Contains(said, "failed to connect") || strings.Contains(said, "unknown server OS")
	}
	text := strings.ReplaceAll(shipped(t, "containers.md"), " \\\n", " ")
	lines := regexp.MustCompile(`(?m)^docker .*$`).FindAllString(text, -1)
	for _, m := range regexp.MustCompile("`(--(?:cap-add|ulimit|device|shm-size|network|ipc|pid|cpuset-cpus|gpus)[= ][^`]*)`").FindAllStringSubmatch(text, -1) {
		lines = append(lines, "docker run "+m[1]+" IMAGE")
	}
	if len(lines) < 8 {
		t.Fatalf("%d commands were found: %q", len(lines), lines)
	}
	for _, line := range lines {
		if said := read(line); !understood(said) {
			t.Errorf("%s\n%s", line, said)
		}
	}
	if said := read("docker run --memlock=-1 IMAGE"); understood(said) {
		t.Errorf("a flag that is none is taken: %s", said)
	}
}

func TestThePodIsOne(t *testing.T) {
	m := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(shipped(t, "containers.md"))
	if m == nil {
		t.Fatal("no pod")
	}
	var pod struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Spec       struct {
			Containers []struct {
				Name, Image     string
				SecurityContext struct {
					Capabilities struct{ Add []string }
				} `yaml:"securityContext"`
				Resources struct{ Limits, Requests map[string]string }
				Env       []struct {
					Name      string
					ValueFrom struct {
						FieldRef struct {
							FieldPath string `yaml:"fieldPath"`
						} `yaml:"fieldRef"`
					} `yaml:"valueFrom"`
				}
				Ports []struct {
					ContainerPort int `yaml:"containerPort"`
				}
				VolumeMounts []struct {
					Name      string
					MountPath string `yaml:"mountPath"`
				} `yaml:"volumeMounts"`
			}
			Volumes []struct {
				Name     string
				EmptyDir struct {
					Medium    string
					SizeLimit string `yaml:"sizeLimit"`
				} `yaml:"emptyDir"`
			}
		}
	}
	d := yaml.NewDecoder(strings.NewReader(m[1]))
	d.KnownFields(true)
	if err := d.Decode(&pod); err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	if c.Resources.Limits["cpu"] != c.Resources.Requests["cpu"] || c.Resources.Limits["memory"] != c.Resources.Requests["memory"] {
		t.Errorf("limits %v and requests %v differ: then it is not of the class Guaranteed", c.Resources.Limits, c.Resources.Requests)
	}
	if len(pod.Spec.Volumes) != 1 || len(c.VolumeMounts) != 1 || pod.Spec.Volumes[0].Name != c.VolumeMounts[0].Name || pod.Spec.Volumes[0].EmptyDir.Medium != "Memory" {
		t.Errorf("volumes %+v, mounts %+v", pod.Spec.Volumes, c.VolumeMounts)
	}
	if !slices.Contains(c.SecurityContext.Capabilities.Add, "IPC_LOCK") {
		t.Errorf("capabilities %v", c.SecurityContext.Capabilities.Add)
	}
}
