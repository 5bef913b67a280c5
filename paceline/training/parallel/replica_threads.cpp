#include "paceline/training/parallel/replica_threads.h"

#include <algorithm>

#include <dlfcn.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/thread.h"

namespace paceline {
namespace {

// How many threads of OpenMP this thread computes with, until the end of the scope.
// at::set_num_threads() would also set the number of threads that begin later.
class ComputingThreads {
 public:
  explicit ComputingThreads(int count) : before_(at::get_num_threads()) { set(count); }
  ~ComputingThreads() { set(before_); }
  ComputingThreads(const ComputingThreads&) = delete;
  ComputingThreads& operator=(const ComputingThreads&) = delete;

 private:
  static void set(int count) {
    static auto* const set_num_threads =
        reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
    if (set_num_threads != nullptr) set_num_threads(count);
  }
  const int before_;
};

[[noreturn]] void throw_of_replica(const std::exception_ptr& error, std::size_t replica, int count,
                                   const char* what) {
  const auto of_replica = [&](ErrorCode code, const char* text) {
    return Error(code, fmt::format("replica {} of {}: {}: {}", replica, count, what, text));
  };
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    throw of_replica(known.code(), known.what());
  } catch (const c10::Error& known) {
    throw of_replica(ErrorCode::kInvalid, known.what_without_backtrace());
  } catch (...) {
    throw of_replica(ErrorCode::kInvalid, describe_current_exception().c_str());
  }
}

}  // namespace

ReplicaThreads::ReplicaThreads(int num_replicas) {
  for (int replica = 1; replica < num_replicas; ++replica)
    threads_.push_back(start_thread("paceline-dp", [this, replica] { work(replica); }));
}

ReplicaThreads::~ReplicaThreads() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  begun_.notify_all();
}

void ReplicaThreads::run(int count, const char* what, const std::function<void(int)>& body) {
  const std::lock_guard one_run(one_run_);
  const Job job{count, std::max(1, at::get_num_threads() / count), &body, at::ThreadLocalState()};
  {
    const std::lock_guard lock(mutex_);
    errors_.assign(static_cast<std::size_t>(count), nullptr);
    job_ = &job;
    num_working_ = count - 1;
    ++num_runs_;
    begun_.notify_all();
  }
  attempt(0, job);
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return num_working_ == 0; });
    job_ = nullptr;
  }
  for (std::size_t replica = 0; replica < errors_.size(); ++replica) {
    if (errors_[replica]) throw_of_replica(errors_[replica], replica, count, what);
  }
}

void ReplicaThreads::work(int replica) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [&] { return stopped_ || num_runs_ != seen; });
    if (stopped_) return;
    seen = num_runs_;
    if (job_ == nullptr || replica >= job_->count) continue;
    const Job& job = *job_;
    lock.unlock();
    attempt(replica, job);
    lock.lock();
    if (--num_working_ == 0) ended_.notify_one();
  }
}

void ReplicaThreads::attempt(int replica, const Job& job) {
  try {
    const at::ThreadLocalStateGuard state(job.state);
    const ComputingThreads threads(job.threads_of_each);
    (*job.body)(replica);
  } catch (...) {
    errors_[static_cast<std::size_t>(replica)] = std::current_exception();
  }
}

}  // namespace paceline
