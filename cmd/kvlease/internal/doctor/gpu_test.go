package doctor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/cuda"
)

func TestEachHarmToGPUsAndNICsIsNamedWithItsRemedy(t *testing.T) {
	for _, tc := range []harmed{
		{"GPUs where sysfs is not mounted", "no-nic", func(r *rig) { r.remove("sys"); r.tell("fail Init_v2 1 12") }, "driver", Skip, "not seen", ""},
		{"NICs where sysfs is not mounted", "no-nic", func(r *rig) { r.remove("sys"); r.tell("fail Init_v2 1 12") }, "NICs", Skip, "not seen", ""},
		{"no GPU and no library", "no-nic", func(r *rig) { r.remove("sys/bus/pci/devices"); r.tell("fail Init_v2 1 12") }, "driver", Skip, "no NVIDIA GPU on the bus", ""},
		{"GPUs and no driver", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 9") }, "driver", Fail, "not loaded; 2 NVIDIA GPUs on the bus (0000:01:00.0", "modprobe nvidia"},
		{"a driver that was updated", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 18") }, "driver", Fail, "another version", "reboot"},
		{"no rights", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 4") }, "driver", Fail, "may not open", "/dev/nvidia"},
		{"an old driver", "no-nic", func(r *rig) { r.tell("driver 470.82.01 11040") }, "driver", Fail, "too old", "525.60.13"},
		{"something unheard of", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 777") }, "driver", Fail, "777", "dmesg"},
		{"a driver of closed modules", "far-socket", func(*rig) {}, "driver", Pass, "535.161.07, CUDA 12.2, closed kernel modules; 4 GPUs", ""},
		{"a driver of open modules", "grace-hopper", func(*rig) {}, "driver", Pass, "CUDA 12.6, open kernel modules; 1 GPU", ""},
		{"a lost GPU", "far-socket", func(r *rig) { r.tell("lost 2 1") }, "GPU 2", Fail, "fallen off the bus", "reboot"},
		{"its neighbour", "far-socket", func(r *rig) { r.tell("lost 2 1") }, "GPU 1", Pass, "NVIDIA A100-PCIE-40GB at 0000:18:00.0, 40GB; BAR1 64GB, 64GB free; ECC on, 0 uncorrected; NUMA node 0", ""},
		{"uncorrected errors", "no-nic", func(r *rig) { r.tell("ecc 0 1 1 3") }, "GPU 0", Fail, "3 uncorrected", "gpu-reset -i 0"},
		{"a row that waits", "no-nic", func(r *rig) { r.tell("remap 0 1 0 1 0") }, "GPU 0", Warn, "waits to be remapped", "reset"},
		{"rows that were remapped", "no-nic", func(r *rig) { r.tell("remap 0 1 2 0 0") }, "GPU 0", Pass, "3 rows remapped", ""},
		{"no window", "no-nic", func(r *rig) { r.tell("bar1 1 0 0") }, "GPU 1", Warn, "BAR1 is 0B, 0B of it free, for 45GB", "Resizable BAR"},
		{"a window of which more is free than there is", "no-nic", func(r *rig) { r.tell("bar1 1 268435456 536870912") }, "GPU 1", Warn, "BAR1 is 256MB, 256MB of it free", "Resizable BAR"},
		{"a window of which nothing is told", "no-nic", func(r *rig) { r.tell("fail DeviceGetBAR1MemoryInfo 2 3") }, "GPU 1", Pass, "45GB; BAR1 not told", ""},
		{"two GPUs at one address", "no-nic", func(r *rig) { r.tell("gpu 2 0000:01:00.0 B") }, "GPU 2", Warn, "GPU 0 at the same address", "lspci"},
		{"a narrow window", "no-nic", func(r *rig) { r.tell("bar1 1 268435456 16777216") }, "GPU 1", Warn, "BAR1 is 256MB, 240MB of it free, for 45GB", "Resizable BAR"},
		{"MIG without an instance", "no-nic", func(r *rig) { r.tell("mig 0 1 1") }, "GPU 0", Fail, "no instance", "nvidia-smi mig -i 0 -cgi"},
		{"MIG with two", "no-nic", func(r *rig) {
			r.parts()
			r.environ("CUDA_VISIBLE_DEVICES=MIG-0000fa4e-0000-0000-0003-000000000000")
		}, "GPU 0's instances", Pass, "MIG 1g.12gb of 10GB, 10GB free: CUDA_VISIBLE_DEVICES=MIG-0000fa4e-0000-0000-0000-000000000000; MIG 3g.48gb", ""},
		{"MIG with two, and a process that names none", "no-nic", func(r *rig) { r.parts() }, "GPU 0's instances", Warn, "MIG 3g.48gb", "CUDA_VISIBLE_DEVICES=MIG-0000fa4e"},
		{"a GPU in MIG mode", "no-nic", func(r *rig) { r.parts() }, "GPU 0", Pass, "MIG on", ""},
		{"an Xid now", "no-nic", func(r *rig) { r.tell("xid 0 79") }, "GPU 0", Fail, "Xid 79", "dmesg"},
		{"an Xid in the log", "no-nic", func(r *rig) {
			r.put("dev/kmsg", "4,900,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, MMU Fault\n4,901,2,-;NVRM: Xid (PCI:0000:01:00): 31, pid=8, name=python\n"+
				"4,902,3,-;NVRM: Xid (PCI:0000:02:00): 95, pid='<unknown>', Uncontained")
		}, "Xid errors", Fail, "Xid 31, an application's error on 0000:01:00; Xid 95, uncontained ECC error on 0000:02:00", "catalogue"},
		{"a program's Xid in the log", "no-nic", func(r *rig) { r.put("dev/kmsg", "4,900,1,-;NVRM: Xid (PCI:0000:01:00): 13, pid=7") }, "Xid errors", Warn, "Xid 13", "dmesg"},
		{"a log that may not be read", "no-nic", func(r *rig) { r.remove("dev/kmsg") }, "Xid errors", Skip, "kernel's log", ""},
		{"the driver's API", "no-nic", func(*rig) {}, "CUDA", Pass, "driver for 12.4, /lib/libcuda.so.1; 1 visible", ""},
		{"a driver's API that refuses", "no-nic", func(r *rig) {
			r.CUDA = func() (*CUDA, error) {
				return nil, fmt.Errorf("open: %w", &cuda.Error{Call: "cuInit", Code: 100, Cause: "the driver sees no GPU", Fix: "--gpus all"})
			}
		}, "CUDA", Fail, "the driver sees no GPU", "--gpus all"},
		{"a driver's API that is not there", "no-nic", func(r *rig) { r.CUDA = func() (*CUDA, error) { return nil, errors.New("libcuda.so.1: no such file") } }, "CUDA", Fail, "libcuda.so.1", "nvidia-smi"},
		{"no GPU to ask for", "no-nic", func(r *rig) { r.remove("sys/bus/pci/devices"); r.tell("fail Init_v2 1 12") }, "CUDA", "none", "", ""},
		{"a device for NICs", "eight-by-eight", func(*rig) {}, "device 0", Pass,
			"0000:1b:00.0, GPUDirect RDMA, GPUDirect RDMA of VMM memory, dma-buf, NICs' writes are ordered for the device itself, flush from the host", ""},
		{"a device for no NIC", "eight-by-eight", func(r *rig) { r.devices(cuda.Features{PCI: "0000:01:00.0"}) }, "device 0", Fail, "no GPUDirect RDMA", "consumer cards"},
		{"a device by dma-buf alone", "grace-hopper", func(r *rig) { r.devices(cuda.Features{DMABuf: true, FlushHost: true}) }, "device 0", Warn, "no GPUDirect RDMA, no GPUDirect RDMA of VMM memory, dma-buf", "expandable_segments"},
		{"a device whose reads cannot be proven", "eight-by-eight", func(r *rig) { r.devices(cuda.Features{RDMA: true, RDMAWithVMM: true}) }, "device 0", Fail, "ordered for nobody", "host memory"},
		{"a device without dma-buf, and no module", "grace-hopper", func(r *rig) { r.devices(cuda.Features{RDMA: true, FlushHost: true}) }, "device 0", Fail, "no dma-buf", "nvidia_peermem"},
		{"a device that gives no mapped memory", "eight-by-eight", func(r *rig) { r.devices(cuda.Features{RDMA: true, Ordering: cuda.OrderingAll}) }, "device 0", Warn, "no GPUDirect RDMA of VMM", "expandable_segments"},
		{"GPUs without NICs", "no-nic", func(*rig) {}, "NICs", Warn, "no RDMA device", "modprobe mlx5_ib"},
		{"a NIC that is down", "grace-hopper", func(*rig) {}, "mlx5_1", Warn, "port 1 down, Disabled, Ethernet", "subnet manager"},
		{"a NIC that is up", "grace-hopper", func(*rig) {}, "mlx5_0", Pass, "port 1 active, LinkUp, InfiniBand 400 Gb/sec (4X NDR) at 0000:01:00.0, NUMA node 0", ""},
		{"a NIC whose port's state is not told", "grace-hopper", func(r *rig) {
			r.remove("sys/class/infiniband/mlx5_0/ports/1/state")
			r.remove("sys/class/infiniband/mlx5_0/ports/1/phys_state")
		}, "mlx5_0", Warn, "port 1 of a state that is not told, InfiniBand 400", "cable"},
		{"a NIC without ports", "grace-hopper", func(r *rig) { r.remove("sys/class/infiniband/mlx5_0/ports") }, "mlx5_0", Warn, "no port at 0000:01:00.0", "cable"},
		{"a container without NICs", "eight-by-eight", func(r *rig) { r.remove("dev/infiniband/uverbs3") }, "mlx5_3", Fail, "port 1 active", "--device=/dev/infiniband"},
		{"a NIC without verbs", "eight-by-eight", func(r *rig) { r.remove("sys/class/infiniband_verbs/uverbs3") }, "mlx5_3", Fail, "port 1 active", "modprobe ib_uverbs"},
		{"no way to GPU memory", "far-socket", func(r *rig) { r.remove("sys/module") }, "GPU memory to NICs", Fail, "not the open ones", "nvidia-peermem"},
		{"dma-buf", "grace-hopper", func(*rig) {}, "GPU memory to NICs", Pass, "dma-buf", ""},
		{"dma-buf on an old kernel", "grace-hopper", func(r *rig) { r.Kernel = "5.4.0" }, "GPU memory to NICs", Fail, "older than 5.12", "5.12"},
		{"NICs on the other socket", "far-socket", func(*rig) {}, "GPU 3's NIC", Warn, "mlx5_1: across sockets", "lspci"},
		{"a NIC below the GPU's switch", "eight-by-eight", func(*rig) {}, "GPU 5's NIC", Pass, "mlx5_5: same PCIe switch", ""},
		{"no NIC that can be used", "far-socket", func(r *rig) { r.remove("dev/infiniband") }, "GPU 0's NIC", Fail, "no RDMA NIC", "above"},
		{"a setting that is worse than ours", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_1:1") }, "GPU 0's NIC", Warn, "UCX_NET_DEVICES is mlx5_1:1", "UCX_NET_DEVICES=mlx5_0:1"},
		{"the same in a file of UCX's", "eight-by-eight", func(r *rig) { r.put("proc/self/root/root/ucx.conf", "UCX_NET_DEVICES=mlx5_1:1") }, "GPU 0's NIC", Warn, "UCX_NET_DEVICES is mlx5_1:1", "UCX_NET_DEVICES=mlx5_0:1"},
		{"the right one without its port", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_0") }, "GPU 0's NIC", Pass, "mlx5_0", ""},
		{"all others left out", "eight-by-eight", func(r *rig) {
			r.environ("UCX_NET_DEVICES=^mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1")
		}, "GPU 0's NIC", Pass, "mlx5_0", ""},
		{"two of which one is right", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1") }, "GPU 0's NIC", Warn, "UCX_NET_DEVICES is mlx5_0:1,mlx5_1:1", "UCX_NET_DEVICES=mlx5_0:1"},
		{"the same setting where it is right", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_1:1") }, "GPU 1's NIC", Pass, "mlx5_1", ""},
		{"a device that is not there", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_0:1,mlx5_77:1") }, "UCX_NET_DEVICES", Warn, "mlx5_77", "unset"},
		{"transports without verbs", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=tcp,sm,self") }, "UCX_TLS", Warn, "tcp", "have rc among them"},
		{"all but those with verbs", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=^ib") }, "UCX_TLS", Warn, "^ib", "have rc among them"},
		{"transports with verbs", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=rc_x,cuda_copy") }, "UCX_TLS", "none", "", ""},
		{"no transport at all", "no-nic", func(r *rig) { r.environ("UCX_TLS=^") }, "UCX_TLS", Warn, "^", "unset"},
		{"an empty list of transports", "no-nic", func(r *rig) { r.environ("UCX_TLS=") }, "UCX_TLS", Warn, "", "unset"},
		{"a transport that UCX has not", "no-nic", func(r *rig) { r.environ("UCX_TLS=tcp,shmem") }, "UCX_TLS", Warn, "shmem", "ucx_info -d"},
		{"a transport of a later UCX", "no-nic", func(r *rig) { r.environ("UCX_TLS=tcp,warp") }, "UCX_TLS", Warn, "warp", "if ucx_info -d has it, none"},
		{"a transport in capitals", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=RC,cuda") }, "UCX_TLS", Warn, "RC", "ucx_info -d"},
		{"a blank in a list", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=tcp, rc") }, "UCX_TLS", Warn, "rc", "no blanks"},
		{"transports that UCX has", "no-nic", func(r *rig) { r.environ(`UCX_TLS=\rc_mlx5,ud_x:aux,gdr_copy,shm`) }, "UCX_TLS", "none", "", ""},
		{"no network device at all", "no-nic", func(r *rig) { r.environ("UCX_NET_DEVICES=") }, "UCX_NET_DEVICES", Warn, "", "unset"},
		{"none that is left out", "no-nic", func(r *rig) { r.environ("UCX_NET_DEVICES=^") }, "UCX_NET_DEVICES", "none", "", ""},
		{"GPUDirect in capitals", "eight-by-eight", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=NO") }, "UCX_IB_GPU_DIRECT_RDMA", Warn, "NO", "unset"},
		{"GPUDirect with a word that UCX does not take", "no-nic", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=on") }, "UCX_IB_GPU_DIRECT_RDMA", Warn, "on", "or yes"},
		{"GPUDirect with one that it takes", "no-nic", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=Maybe") }, "UCX_IB_GPU_DIRECT_RDMA", "none", "", ""},
		{"GPUDirect switched off", "eight-by-eight", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=no") }, "UCX_IB_GPU_DIRECT_RDMA", Warn, "no", "unset"},
		{"handlers of UCX's", "no-nic", func(r *rig) { r.environ("UCX_HANDLE_ERRORS=bt,freeze") }, "UCX_HANDLE_ERRORS", Warn, "bt,freeze", "unset"},
		{"a folder without plugins", "no-nic", func(r *rig) { r.environ("NIXL_PLUGIN_DIR=/nowhere") }, "NIXL_PLUGIN_DIR", Warn, "/nowhere", "unset"},
		{"harmless settings", "no-nic", func(r *rig) { r.environ("UCX_LOG_LEVEL=info", "KVLEASE_CORE=/x") }, "environment", Pass, "KVLEASE_CORE=/x UCX_LOG_LEVEL=info", ""},
	} {
		t.Run(tc.name, func(t *testing.T) { hold(t, tc.machine, tc.harm, tc.line, tc.want, tc.value, tc.fix) })
	}
}
