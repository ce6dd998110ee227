module github.com/kvlease/kvlease

go 1.26.0

require (
	github.com/alecthomas/kong v1.17.0
	github.com/cilium/ebpf v0.22.0
	github.com/google/go-cmp v0.7.0
	go.yaml.in/yaml/v3 v3.0.4
	golang.org/x/sys v0.50.0
	pgregory.net/rapid v1.3.0
)
