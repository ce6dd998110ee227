/* Prints each field of the shared memory as "struct.field offset size", and each struct as "struct size", for the test
 * in dataplane/record that holds the Go half to the same numbers. */
#include <stddef.h>
#include <stdio.h>

#include "../include/kvlease.h"
#include "../src/layout.h"

#define S(type) printf("%s %zu\n", #type, sizeof(kvl_##type##_t))
#define F(type, field)                                                                                                 \
	printf("%s.%s %zu %zu\n", #type, #field, offsetof(kvl_##type##_t, field), sizeof(((kvl_##type##_t *)0)->field))
#define C(name) printf("=%s %llu\n", #name, (unsigned long long)(name))

int main(void)
{
	S(slot), F(slot, state), F(slot, next), F(slot, flags), F(slot, user), F(slot, blocks), F(slot, id_len), F(slot, reason), F(slot, id);
	S(track_slot), F(track_slot, state), F(track_slot, next), F(track_slot, producer);
	S(board_header), F(board_header, version), F(board_header, flags), F(board_header, duration_ns), F(board_header, base),
		F(board_header, epoch), F(board_header, zero);
	S(row), F(row, fence), F(row, deadline_us), F(row, generation), F(row, beats), F(row, zero);
	S(control), F(control, magic), F(control, version), F(control, lease_free), F(control, track_free), F(control, poisoned),
		F(control, draining), F(control, asleep), F(control, wake_fd), F(control, event_fd), F(control, held),
		F(control, poison_ns), F(control, pass_ns), F(control, pause_until_ns), F(control, steps), F(control, duration_ns),
		F(control, stepping), F(control, rows_closed), F(control, era), F(control, epoch), F(control, secret), F(control, long_at_ns),
		F(control, refused_ring), F(control, refused_table);
	S(rec_expect), F(rec_expect, lease), F(rec_expect, id_len), F(rec_expect, zero);
	S(rec_grant), F(rec_grant, lease), F(rec_grant, key), F(rec_grant, user), F(rec_grant, ttl_ns), F(rec_grant, said_ns),
		F(rec_grant, ready_event), F(rec_grant, blocks), F(rec_grant, tokens), F(rec_grant, flags), F(rec_grant, id_len);
	S(rec_track), F(rec_track, track), F(rec_track, engine), F(rec_track, epoch), F(rec_track, key), F(rec_track, user),
		F(rec_track, said_ns), F(rec_track, expires_ns), F(rec_track, left_ns), F(rec_track, slot), F(rec_track, generation), F(rec_track, native),
		F(rec_track, remote_len), F(rec_track, local_len);
	S(run), F(run, group), F(run, local), F(run, remote), F(run, n);
	S(rec_read), F(rec_read, track), F(rec_read, part), F(rec_read, parts), F(rec_read, n), F(rec_read, zero);
	S(event), F(event, kind), F(event, reserved), F(event, flags), F(event, status), F(event, rank), F(event, handle),
		F(event, user), F(event, value0), F(event, value1), F(event, time_ns), F(event, reasons);
	S(rec_engine), F(rec_engine, engine), F(rec_engine, user), F(rec_engine, tp_size), F(rec_engine, pp_size), F(rec_engine, id_len),
		F(rec_engine, zero);
	S(rec_engine_gone), F(rec_engine_gone, engine);
	S(rec_blob), F(rec_blob, kind), F(rec_blob, rank), F(rec_blob, handle), F(rec_blob, total), F(rec_blob, offset);
	S(rec_pause), F(rec_pause, left_ns);
	S(rec_era), F(rec_era, era), F(rec_era, epoch), F(rec_era, secret), F(rec_era, duration_ns);
	S(rec_full), F(rec_full, incarnation), F(rec_full, mark), F(rec_full, zero);
	S(rec_drain), F(rec_drain, left_ns);
	S(rec_poison), F(rec_poison, zero);
	S(rec_host_leaves), F(rec_host_leaves, zero);
	S(rec_reader_dead), F(rec_reader_dead, reader), F(rec_reader_dead, epoch);
	S(rec_reader_heard), F(rec_reader_heard, reader), F(rec_reader_heard, epoch), F(rec_reader_heard, nonce), F(rec_reader_heard, left),
		F(rec_reader_heard, zero);
	S(rec_trouble), F(rec_trouble, engine), F(rec_trouble, for_ns);
	S(rec_rank_state), F(rec_rank_state, flags), F(rec_rank_state, held), F(rec_rank_state, tracked), F(rec_rank_state, reads),
		F(rec_rank_state, era), F(rec_rank_state, incarnation), F(rec_rank_state, registrations), F(rec_rank_state, steps);
	C(KVL_NONE), C(KVL_S_FREE), C(KVL_S_EXPECTED), C(KVL_S_GRANTED), C(KVL_S_ENDED), C(KVL_S_TRACKED), C(KVL_S_READING), C(KVL_S_LAPSED),
		C(KVL_S_MASK), C(KVL_S_CANCEL), C(KVL_S_REVOKE), C(KVL_SF_UNCHECKED), C(KVL_SF_UNREADY), C(KVL_GRANT_FIXED), C(KVL_BF_DRAINING), C(KVL_BF_CLOSED);
	C(KVL_REC_EXPECT), C(KVL_REC_GRANT), C(KVL_REC_CANCEL), C(KVL_REC_REVOKE), C(KVL_REC_PRESSURE), C(KVL_REC_TRACK),
		C(KVL_REC_UNTRACK), C(KVL_REC_REJECT), C(KVL_REC_READ), C(KVL_REC_ENGINE), C(KVL_REC_ENGINE_GONE), C(KVL_REC_BLOB),
		C(KVL_REC_PAUSE), C(KVL_REC_ERA), C(KVL_REC_FULL), C(KVL_REC_DRAIN), C(KVL_REC_POISON), C(KVL_REC_HOST_LEAVES), C(KVL_REC_READER_DEAD), C(KVL_REC_READER_HEARD),
		C(KVL_REC_EVENT), C(KVL_REC_RETIRED), C(KVL_REC_STATE), C(KVL_REC_TROUBLE), C(KVL_BLOB_PEER), C(KVL_BLOB_OWN), C(KVL_BLOB_PIECE_MAX),
		C(KVL_FULL_START), C(KVL_FULL_END), C(KVL_RS_REGISTERED), C(KVL_RS_POISONED), C(KVL_RS_DRAINED), C(KVL_READ_RUNS_MAX), C(KVL_ID_MAX), C(KVL_LAYOUT_VERSION);
	C(KVL_EV_FREED), C(KVL_EV_READ_DONE), C(KVL_EV_READ_FAILED), C(KVL_EV_BLOCKS_BACK), C(KVL_EV_LEASE_GONE), C(KVL_EV_AT_RISK),
		C(KVL_EV_ENGINE_UP), C(KVL_EV_ENGINE_DOWN), C(KVL_EV_POISONED), C(KVL_EV_EXPECT_LAPSED), C(KVL_EV_RANK_UP),
		C(KVL_EV_RANK_DOWN), C(KVL_EV_HOST_DOWN), C(KVL_EV_ENGINE_DRAINS), C(KVL_EVF_BLOCKS_HELD);
	C(KVL_FREED_COMPLETED), C(KVL_FREED_RELEASED), C(KVL_FREED_REVOKED), C(KVL_FREED_EXPIRED), C(KVL_FREED_POISONED),
		C(KVL_FREED_DUPLICATE), C(KVL_FREED_CLOSED), C(KVL_FREED_LOST);
	C(KVL_READ_OK), C(KVL_READ_STALE), C(KVL_READ_UNPROVEN), C(KVL_READ_FAILED), C(KVL_READ_TIMEOUT), C(KVL_READ_CANCELLED),
		C(KVL_READ_LOST);
	return 0;
}
