/* Ballast's C interface: one rank of one training job, through libballast.so.
 *
 * Compatibility: the ABI version is major.minor. Major 0, until the product
 * is released: any change of a symbol, struct or constant raises the minor
 * part, and caller and library must have the same. From 1.0 on: what is there
 * never changes within a major version, additions raise the minor part, and
 * the library's must be at least the caller's. Check at run time:
 *
 *   if (!BALLAST_ABI_FITS(ballast_abi_version())) refuse;
 *
 * Sketch:
 *
 *   ballast_session* s; ballast_error e;
 *   if (ballast_open(json, tensors, n, NULL, NULL, &s, &e)) fail(e.message);
 *   float* g = ballast_grads(s, 0, &bytes);
 *   for (;;) { …fill g from ballast_params(s, 0, &bytes)…
 *              if (ballast_step(s, cursor, len, 1, 600, &result, &e)) … }
 *   ballast_close(s, 60, &e);
 *   ballast_release(s);
 *
 * Errors: functions that return int give 0 or a code (enum ballast_code) and
 * fill `error` (may be NULL): the message names field, value and remedy;
 * resume_step >= 0 says that the session goes on and which step to compute
 * (again), -1 that it does not say so. After BALLAST_DEADLINE_EXCEEDED and
 * BALLAST_CANCELLED the same call, with the same values, may be repeated and
 * goes on waiting.
 *
 * Threads: one call per session at a time; a second one is refused with
 * BALLAST_FAILED_PRECONDITION. Different sessions are independent.
 * ballast_release and ballast_free may be called from any thread, the former
 * not during a call.
 *
 * Fork: in a forked child every call is refused with
 * BALLAST_FAILED_PRECONDITION, and ballast_release does nothing.
 *
 * Signals: blocking calls go on after a signal; `interrupted` is the way out.
 *
 * Units: sizes in bytes, times in seconds. Strings are UTF-8, NUL-terminated.
 * Nothing given to a function is kept after it returns.
 */
#ifndef CLIENT_CAPI_BALLAST_H_
#define CLIENT_CAPI_BALLAST_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BALLAST_ABI_MAJOR 0
#define BALLAST_ABI_MINOR 9
/* Whether a caller that was compiled with this header may use a library of
 * this version. */
#define BALLAST_ABI_FITS(version)                                    \
  ((version) >> 16 == BALLAST_ABI_MAJOR &&                           \
   (BALLAST_ABI_MAJOR == 0 ? ((version)&0xffff) == BALLAST_ABI_MINOR \
                           : ((version)&0xffff) >= BALLAST_ABI_MINOR))
#define BALLAST_MESSAGE_BYTES 2048

enum ballast_code { /* gRPC's and Abseil's numbers */
                    BALLAST_OK = 0,
                    BALLAST_CANCELLED = 1,
                    BALLAST_UNKNOWN = 2,
                    BALLAST_INVALID_ARGUMENT = 3,
                    BALLAST_DEADLINE_EXCEEDED = 4,
                    BALLAST_NOT_FOUND = 5,
                    BALLAST_ALREADY_EXISTS = 6,
                    BALLAST_PERMISSION_DENIED = 7,
                    BALLAST_RESOURCE_EXHAUSTED = 8,
                    BALLAST_FAILED_PRECONDITION = 9,
                    BALLAST_ABORTED = 10,
                    BALLAST_OUT_OF_RANGE = 11,
                    BALLAST_UNIMPLEMENTED = 12,
                    BALLAST_INTERNAL = 13,
                    BALLAST_UNAVAILABLE = 14,
                    BALLAST_DATA_LOSS = 15,
                    BALLAST_UNAUTHENTICATED = 16
};

enum ballast_dtype {
  BALLAST_FLOAT32 = 1,
  BALLAST_BFLOAT16 = 2,
  BALLAST_FLOAT16 = 3
};

typedef struct ballast_session ballast_session;

typedef struct ballast_error {
  int32_t code; /* enum ballast_code */
  int32_t reserved;
  int64_t resume_step; /* -1: none */
  char message[BALLAST_MESSAGE_BYTES];
} ballast_error;

/* One tensor; the same list on all ranks. Initial values that share memory,
 * all of it or a part, are refused: tied tensors are one tensor, registered
 * once; equal values of different tensors need buffers of their own. */
typedef struct ballast_tensor {
  const char* name;
  const int64_t* shape; /* ndim dimensions; may be NULL if ndim is 0 */
  int32_t ndim;         /* 0: a scalar, one element */
  int32_t dtype;        /* enum ballast_dtype */
  int32_t frozen;       /* 1: published once, no gradient */
  int32_t group;        /* index into the optimizer's groups */
  const void* initial;  /* rank 0: its value, dense, C order; NULL: none */
  uint64_t initial_bytes;
} ballast_tensor;

/* Hyperparameters of one param group; what the optimizer lacks is 0. */
typedef struct ballast_group {
  double lr, beta1, beta2, eps, weight_decay, momentum, dampening, nesterov;
  double lr_decay, initial_accumulator_value; /* adagrad */
  /* Of the next step only, the same in all groups: the largest global norm in
   * place of the job's gradient_clipping. 0: the job's counts. */
  double max_norm;
} ballast_group;

typedef struct ballast_info {
  int64_t open_step;      /* the step to compute */
  int64_t weight_version; /* whose weights are visible */
  int64_t optimizer_step; /* updates so far */
  int64_t generation;
  int32_t resumed; /* 1: a job that existed goes on */
  int32_t num_buckets;
  int32_t num_groups;
  int32_t num_tensors;
  /* 1: this rank's former worker gave all of open_step. It may be computed
   * again (over weights that stay as they were); what that worker gave counts,
   * and ballast_cursor is its own after ballast_step. */
  int32_t step_is_given;
  int32_t reserved;
} ballast_info;

/* Of what all nodes sent of a path, sampled, by the names of the metrics and
 * of `ballastctl job`. NaN: not measured in this step or not known, never 0. */
typedef struct ballast_path_quality {
  uint64_t sampled;      /* elements; 0: not measured in this step */
  double relative_error; /* RMS */
  double clipped_share;  /* of `sampled`, cut off by range clip16 */
  /* L2, of what encoding took from this node's gradients and adds to those of
   * the next step; only of gradients, with error feedback. */
  double residual_norm;
  uint32_t num_wider; /* tensors that crossed by a wider codec */
  uint32_t reserved;
} ballast_path_quality;

typedef struct ballast_step_result {
  int64_t step;
  int64_t weight_version;
  int64_t optimizer_step;
  int32_t skipped; /* 1: a non-finite gradient, weights unchanged */
  uint32_t fallbacks;
  int32_t loaded; /* 1: the weights are those of ballast_load_weights */
  int32_t reserved;
  double grad_norm; /* global, before clipping */
  double clip_factor;
  double lr; /* of group 0 */
  /* How far what all nodes sent is from what was meant (RMS, sampled): this
   * step's gradients or the weights they were computed from, the worse; 0
   * where neither was measured. */
  double relative_error;
  uint64_t wire_bytes_sent;
  uint64_t wire_bytes_received;
  uint64_t payload_bytes;
  double seconds;
  double stage_seconds[6]; /* collect, reduce, vote, update, publish, wait */
  ballast_path_quality gradients; /* of this step */
  ballast_path_quality weights;   /* that they were computed from */
} ballast_step_result;

/* Asked every 100 ms or so during blocking calls, on the calling thread; not
 * 0 makes the call return BALLAST_CANCELLED. */
typedef int (*ballast_interrupted)(void* context);

uint32_t ballast_abi_version(void); /* major << 16 | minor */
const char* ballast_version(void);  /* of the product, "0.1.0" */

/* Attaches and blocks until the job runs. `options_json` is one object with
 *   job (string, required), tenant, address, token
 *   rank, world_size, local_rank, local_world_size, node_rank (integers)
 *   optimizer (required): {"name": "adamw", "groups": [{"lr": 1e-3, …}, …]}
 *   exchange ("exact"), gradient_clipping (0: off), bucket_bytes (0: default)
 *   resume ("auto", "never", "must"), load (a snapshot to
 *   start from: "NAME" of this job or "JOB/NAME"), hold_seconds (0: the
 *   daemon's default), connect_timeout (30), open_timeout (600)
 * Unknown keys are refused. Where the daemon goes away before the job runs, it
 * is looked for, and all is done again, until open_timeout; one line on stderr
 * says so. On success *session must be released. */
int ballast_open(const char* options_json, const ballast_tensor* tensors,
                 size_t num_tensors, ballast_interrupted interrupted,
                 void* context, ballast_session** session,
                 ballast_error* error);

int ballast_get_info(ballast_session* session, ballast_info* info,
                     ballast_error* error);

/* The published weights (read-only memory) and this rank's gradient of one
 * tensor. Valid until ballast_release, also after close. NULL with *bytes 0
 * for a tensor without elements, and for the gradient of a frozen one. */
const void* ballast_params(ballast_session* session, size_t tensor,
                           uint64_t* bytes);
void* ballast_grads(ballast_session* session, size_t tensor, uint64_t* bytes);

/* Where a tensor's published weights lie in the segment that holds all of
 * them, for a caller that maps it once more (for reading, or MAP_PRIVATE):
 * *fd is the segment's, opened read-only; it belongs to the session and is
 * closed with it, so map or duplicate it at once. For a tensor without
 * elements *offset is 0. Each pointer may be NULL.
 * BALLAST_FAILED_PRECONDITION after close or detach. */
int ballast_weights(ballast_session* session, size_t tensor, int* fd,
                    uint64_t* segment_bytes, uint64_t* offset,
                    ballast_error* error);

/* Values travel with the next step; all ranks must set the same. */
int ballast_group_get(ballast_session* session, size_t index,
                      ballast_group* group, ballast_error* error);
int ballast_group_set(ballast_session* session, size_t index,
                      const ballast_group* group, ballast_error* error);

/* Hands over one gradient early; it must not change until the commit. */
int ballast_push(ballast_session* session, size_t tensor, ballast_error* error);

/* Pushes the rest and waits for the commit; with wait_published also for the
 * new weights. The cursor (at most 65536 bytes) is kept with the step. */
int ballast_step(ballast_session* session, const void* cursor,
                 size_t cursor_bytes, int wait_published, double timeout,
                 ballast_step_result* result, ballast_error* error);

/* Replaces the weights of the running job, in a step of its own that all ranks
 * must take: at a step boundary each calls this in place of ballast_step. Rank
 * 0 gives one pointer per tensor, in order, to a value of the tensor's size;
 * NULL for what stays. Other ranks' values are not looked at: NULL, 0 will do.
 * Moments stay, or are zero with reset_state. cursor as in ballast_step; NULL:
 * the rank's committed one stays. The new weights are visible when it returns;
 * gradients are zero then. Frozen tensors cannot change, nor weights that are
 * not resident: BALLAST_FAILED_PRECONDITION. */
int ballast_load_weights(ballast_session* session, const void* const* values,
                         size_t num_values, int reset_state, const void* cursor,
                         size_t cursor_bytes, double timeout,
                         ballast_step_result* result, ballast_error* error);

/* Until the weights of the last committed step are there: of one tensor, or
 * of all (BALLAST_ALL_TENSORS). */
#define BALLAST_ALL_TENSORS ((size_t)-1)
int ballast_wait(ballast_session* session, size_t tensor, double timeout,
                 ballast_error* error);

/* Weights that are not resident (an exchange policy with
 * secondary_partition=none): ballast_gather fetches those of the tensors whose
 * indexes are given from their owners, of the last committed step, and again
 * after each step, until ballast_give_back. With `wait` they are there when it
 * returns; without they come meanwhile: ballast_is_held, ballast_wait. Memory
 * of ballast_params that is not held reads as zeros or older weights.
 * BALLAST_RESOURCE_EXHAUSTED: the node would hold more than the policy's
 * resident_bytes; what this call asked for is given back then.
 * BALLAST_FAILED_PRECONDITION where all weights are resident. */
int ballast_gather(ballast_session* session, const size_t* tensors,
                   size_t num_tensors, int wait, double timeout,
                   ballast_error* error);
int ballast_give_back(ballast_session* session, const size_t* tensors,
                      size_t num_tensors, ballast_error* error);
/* 1 if the tensor's weights may be read now; always where they are resident. */
int ballast_is_held(ballast_session* session, size_t tensor);
/* 1 if the job's weights are not resident. */
int ballast_gathers_weights(ballast_session* session);

/* This rank's cursor of the last committed step: at most `capacity` bytes are
 * copied, *size_bytes is its true size. */
int ballast_cursor(ballast_session* session, void* buffer, size_t capacity,
                   size_t* size_bytes, ballast_error* error);

/* What rank 0 committed with that step: the same on all ranks, of all nodes. */
int ballast_rank0_cursor(ballast_session* session, void* buffer,
                         size_t capacity, size_t* size_bytes,
                         ballast_error* error);

/* What a resumed job goes on from, in words; no bytes: from where it stood. */
int ballast_resumed_from(ballast_session* session, void* buffer,
                         size_t capacity, size_t* size_bytes,
                         ballast_error* error);

/* One JSON object: the job as the daemon sees it. Free with ballast_free. */
int ballast_stats(ballast_session* session, double timeout, char** json,
                  ballast_error* error);
void ballast_free(void* memory);

/* A snapshot of the job as it is, below the daemon's snapshots.directory:
 * JOB/NAME; `name` NULL or empty: named by its step. Returns when it is
 * durable; any rank may call it, alone, the others go on. Each pointer may be
 * NULL; *path is freed with ballast_free. After BALLAST_DEADLINE_EXCEEDED and
 * BALLAST_CANCELLED the snapshot goes on without this rank. */
int ballast_save(ballast_session* session, const char* name, double timeout,
                 int64_t* step, char** path, ballast_error* error);

/* Detach: the job is held, the rank's place is free. Close: this rank has
 * finished; the job ends when all ranks have closed. Both turn the memory of
 * ballast_params and ballast_grads into private copies in place. */
int ballast_detach(ballast_session* session, double timeout,
                   ballast_error* error);
int ballast_close(ballast_session* session, double timeout,
                  ballast_error* error);

/* Frees the session and unmaps its memory; without close or detach the daemon
 * sees the rank as lost. NULL is ignored. */
void ballast_release(ballast_session* session);

#ifdef __cplusplus
}
#endif

#endif /* CLIENT_CAPI_BALLAST_H_ */
