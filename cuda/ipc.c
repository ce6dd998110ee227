/* Memory of other processes of this machine, and copies between device addresses. */
#include "library.h"

#include <string.h>

_Static_assert(sizeof(kvlc_shared_t) == sizeof(CUipcMemHandle), "kvlc_shared_t");

int32_t kvlc_share(int32_t library, int32_t device, uint64_t addr, kvlc_shared_t *out, kvlc_fault_t *fault)
{
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	CUipcMemHandle handle;
	st = CALL(s.l, fault, cuIpcGetMemHandle, &handle, addr);
	if (st == KVLC_OK)
		memcpy(out, &handle, sizeof handle);
	return kvlc_end(&s, st, fault);
}

int32_t kvlc_open_shared(int32_t library, int32_t device, const kvlc_shared_t *handle, uint64_t *base_out, kvlc_fault_t *fault)
{
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	CUipcMemHandle own;
	memcpy(&own, handle, sizeof own);
	CUdeviceptr base = 0;
	st = CALL(s.l, fault, cuIpcOpenMemHandle, &base, own, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (st != KVLC_OK)
		return kvlc_end(&s, st, fault);
	HAND_OVER(fault, base_out, base, s.l->api.cuIpcCloseMemHandle(base));
}

int32_t kvlc_close_shared(int32_t library, int32_t device, uint64_t base, kvlc_fault_t *fault)
{
	WITHIN(fault, cuIpcCloseMemHandle, base);
}

int32_t kvlc_copies(int32_t library, int32_t device, uint64_t stream, const kvlc_copy_t *list, uint32_t n, uint64_t event, uint32_t *begun_out,
                    kvlc_fault_t *fault)
{
	scope_t s;
	*begun_out = 0;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	CUstream in = (CUstream)(uintptr_t)stream;
	for (uint32_t i = 0; st == KVLC_OK && i < n; i++) {
		st = CALL(s.l, fault, cuMemcpyDtoDAsync, list[i].to, list[i].from, list[i].bytes, in);
		*begun_out += st == KVLC_OK;
	}
	if (st == KVLC_OK)
		st = CALL(s.l, fault, cuEventRecord, (CUevent)(uintptr_t)event, in);
	return kvlc_end(&s, st, fault);
}
