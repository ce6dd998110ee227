package fabric

// Distance is where the ways of two functions to the processor part.
type Distance int

// From near to far. What the two send each other stays below the place that is named.
const (
	SameSwitch Distance = iota
	SameRootPort
	SameHostBridge
	SameNode
	AcrossSockets
	DistanceUnknown
)

var distances = [...]string{
	SameSwitch: "same PCIe switch", SameRootPort: "same root port", SameHostBridge: "same host bridge", SameNode: "same NUMA node",
	AcrossSockets: "across sockets", DistanceUnknown: "unknown",
}

func (d Distance) String() string { return distances[d] }

// MarshalText makes it words in JSON.
func (d Distance) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// meaning says what a way of that length does to one-sided reads of GPU memory.
var meanings = [...]string{
	SameSwitch:     "the NIC reads the GPU without touching the processor",
	SameRootPort:   "the NIC reads the GPU below one root port",
	SameHostBridge: "reads pass the processor's host bridge",
	SameNode:       "reads pass two host bridges of one processor",
	AcrossSockets:  "reads cross the link between the sockets, at a fraction of the NIC's rate",

	DistanceUnknown: "sysfs does not tell the path",
}

// between compares two paths from the host bridge on, and, where they share nothing, the NUMA nodes. hops are the links between them.
func between(a, b []string, nodeA, nodeB int) (d Distance, hops int) {
	if a == nil || b == nil {
		return DistanceUnknown, 0
	}
	common := 0
	for common < len(a) && common < len(b) && a[common] == b[common] {
		common++
	}
	hops = len(a) + len(b) - 2*common
	switch {
	case common >= 3: // host bridge, root port, and at least the upper port of a switch
		return SameSwitch, hops
	case common == 2:
		return SameRootPort, hops
	case common == 1:
		return SameHostBridge, hops
	case nodeA < 0 || nodeB < 0:
		return DistanceUnknown, hops
	case nodeA == nodeB:
		return SameNode, hops
	}
	return AcrossSockets, hops
}
