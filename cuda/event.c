/* Streams and events. A handle crosses as the integer of the driver's pointer. */
#include "library.h"

static CUevent event_of(uint64_t v)
{
	return (CUevent)(uintptr_t)v;
}

static CUstream stream_of(uint64_t v)
{
	return (CUstream)(uintptr_t)v;
}

int32_t kvlc_stream(int32_t library, int32_t device, uint64_t *stream_out, kvlc_fault_t *fault)
{
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	CUstream stream = NULL;
	st = CALL(s.l, fault, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	if (st != KVLC_OK)
		return kvlc_end(&s, st, fault);
	HAND_OVER(fault, stream_out, (uint64_t)(uintptr_t)stream, s.l->api.cuStreamDestroy(stream));
}

int32_t kvlc_event(int32_t library, int32_t device, uint64_t *event_out, kvlc_fault_t *fault)
{
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	CUevent event = NULL;
	st = CALL(s.l, fault, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
	if (st != KVLC_OK)
		return kvlc_end(&s, st, fault);
	HAND_OVER(fault, event_out, (uint64_t)(uintptr_t)event, s.l->api.cuEventDestroy(event));
}

int32_t kvlc_event_query(int32_t library, int32_t device, uint64_t event, kvlc_fault_t *fault)
{
	scope_t s;
	int32_t st = kvlc_begin(&s, library, device, fault);
	if (st != KVLC_OK)
		return st;
	CUresult r = s.l->api.cuEventQuery(event_of(event));
	st = r == CUDA_ERROR_NOT_READY ? KVLC_NOT_READY : kvlc_fault(fault, "cuEventQuery", r);
	return kvlc_end(&s, st, fault);
}

int32_t kvlc_stream_end(int32_t library, int32_t device, uint64_t stream, kvlc_fault_t *fault)
{
	WITHIN(fault, cuStreamDestroy, stream_of(stream));
}

int32_t kvlc_stream_wait(int32_t library, int32_t device, uint64_t stream, uint64_t event, kvlc_fault_t *fault)
{
	WITHIN(fault, cuStreamWaitEvent, stream_of(stream), event_of(event), 0);
}

int32_t kvlc_event_end(int32_t library, int32_t device, uint64_t event, kvlc_fault_t *fault)
{
	WITHIN(fault, cuEventDestroy, event_of(event));
}

int32_t kvlc_event_record(int32_t library, int32_t device, uint64_t event, uint64_t stream, kvlc_fault_t *fault)
{
	WITHIN(fault, cuEventRecord, event_of(event), stream_of(stream));
}
