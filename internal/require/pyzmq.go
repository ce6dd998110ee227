package require

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

const pyzmqVersion = "pyzmq==27.*"

// PyZMQ is a PYTHONPATH with pyzmq, which brings libzmq. It is installed below .deps on first use; where pip cannot, the test skips.
func PyZMQ(t testing.TB) string {
	t.Helper()
	path, err := pyzmqPath()
	if err != nil {
		Skip(t, "pyzmq", err.Error())
	}
	return path
}

var pyzmqPath = sync.OnceValues(func() (string, error) {
	root, err := repository()
	if err != nil {
		return "", err
	}
	target := filepath.Join(root, ".deps", "pyzmq")
	there := func() bool {
		_, err := os.Stat(filepath.Join(target, "zmq"))
		return err == nil
	}
	if there() {
		return target, nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(target), "pyzmq-") // another test process may do the same
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(fresh)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "python3", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", fresh, pyzmqVersion).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("pip install %s: %w: %.300s", pyzmqVersion, err, out)
	}
	if err := os.Rename(fresh, target); err != nil && !there() {
		return "", err
	}
	return target, nil
})

// repository is the folder of go.mod, from that of the package that is tested.
func repository() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the working directory")
		}
	}
	return "", err
}
