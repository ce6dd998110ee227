package log

// contextDefs are the kinds about a context itself: its log, its memory, its threads.
var contextDefs = map[Kind]Def{
	RecordsLost: {
		"records_lost", Warning, [2]string{"records"},
		"{records} [record|records] found no place in the log",
		"drain it more often (kvl_log_take), or look at the counters of kvl_stats for what is missing",
	},
	Poisoned: {
		"poisoned", Error, [2]string{},
		"the core broke, and every row is closed; nothing of this context can be read any more: {text}",
		"restart the engine, and report this text",
	},
	Fenced: {
		"fenced", Error, [2]string{},
		"kvl_fence_all was called: every row is closed, and nothing of this context can be read any more",
		"restart the engine",
	},
	Draining: {
		"draining", Info, [2]string{"held"},
		"it drains: {held} [lease is|leases are] held, and nothing new is taken",
		"none",
	},
	PageMissing: {
		"page_missing", Warning, [2]string{},
		"tools do not see this context, as its stats page could not be made: {text}",
		"give stats_page a folder in memory with room that this user may write to, or leave it empty",
	},
	TransportTold: {
		"transport_told", Info, [2]string{},
		"for reads of this device memory {text}",
		"none; what UCX's environment variables or a ucx.conf say stays, and with transport_settings off nothing is told",
	},
	NetworkDown: {
		"network_down", Warning, [2]string{},
		"no network but loopback was up when its agent was made ({text}): engines on other machines do not reach it, nor it them, though the network comes up later",
		"start engines when the network is up (systemd: After=network-online.target); kvl_unregister and kvl_register make another agent",
	},
	DeviceRegistered: {
		"device_registered", Info, [2]string{"bytes", "pieces"},
		"{bytes} [byte|bytes] of device memory [is|are] registered in {pieces} [piece|pieces]; both ends of each were read through the driver",
		"none; memory_proven or memory_unproven says whether peers can read it",
	},
	DeviceUnchecked: {
		"device_unchecked", Warning, [2]string{},
		"not all that device memory needs could be checked: {text}",
		"none if no NIC is to reach it; else look at kvlease doctor, name the management library by KVLEASE_NVML, or compare the cache with the BAR1 window yourself (nvidia-smi -q -d MEMORY)",
	},
	MemoryProven: {
		"memory_proven", Info, [2]string{"regions", "took_ns"},
		"a second agent of this process read the last page of each of {regions} [region|regions] over {text}, as a peer would, in {took_ns}",
		"none",
	},
	MemoryUnproven: {
		"memory_unproven", Warning, [2]string{"regions"},
		"{regions} [region is|regions are] registered, and it was not shown that peers can read [it|them]: {text}",
		"the first read of a peer shows it; to have it shown at the start leave self_read on and shared memory out of UCX_TLS, and give the process 32 descriptors more",
	},
	Registering: {
		"registering", Info, [2]string{"done_bytes", "bytes"},
		"{done_bytes} of {bytes} [byte is|bytes are] registered",
		"none: steps go on; kvl_close cuts it off after the piece that the transport is at",
	},
	RegisteringSlow: {
		"registering_slow", Warning, [2]string{"since_ns", "bytes"},
		"it has taken {since_ns} so far to register {bytes} [byte|bytes]: devices look at the memory, then each page is pinned, by each NIC",
		"host memory: huge pages, which are fewer, and fewer NICs (UCX_NET_DEVICES); device memory: see dmesg for NVRM lines, and whether other processes of the machine pin, too",
	},
	PriorityOff: {
		"priority_off", Warning, [2]string{"times"},
		"the priority that pump_priority asks for was not permitted",
		"give the process CAP_SYS_NICE or an RLIMIT_RTPRIO, or set pump_priority to off",
	},
	PumpOverslept: {
		"pump_overslept", Warning, [2]string{"times", "late_ns"},
		"the pump woke more than 20 ms late {times} [time|times], by up to {late_ns}: the machine's processors are busy",
		"leave it a processor (cpus), or run fewer threads beside it",
	},
	CollectionLong: {
		"collection_long", Warning, [2]string{"pause_ns"},
		"a collection of the core's memory stopped its threads for up to {pause_ns}",
		"report it with the counters of kvl_stats; go_heap_bytes says how large the heap is",
	},
}
