// The seam to parallel arithmetic. A Task is made once (per generation) and
// submitted many times; submitting allocates nothing and takes no mutex.
// Real: ThreadPool. Simulated: runs the work at a virtual time of its choice.
#ifndef SERVER_BASE_COMPUTE_POOL_H_
#define SERVER_BASE_COMPUTE_POOL_H_

namespace ballast::base {

// Owned by the submitter, who keeps it alive until Done() was called. A task
// is in the pool at most once at a time.
class Task {
 public:
  virtual ~Task() = default;

  // On a pool thread; `thread` in [0, pool.num_threads()).
  virtual void Run(int thread) = 0;

  // On the control thread, after Run() returned (its writes are visible).
  virtual void Done() = 0;
};

class ComputePool {
 public:
  virtual ~ComputePool() = default;

  virtual int num_threads() const = 0;

  // Control thread only. Tasks start in the order of submission.
  virtual void Submit(Task* task) = 0;
};

}  // namespace ballast::base

#endif  // SERVER_BASE_COMPUTE_POOL_H_
