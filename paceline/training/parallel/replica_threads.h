#pragma once

// The threads that work on the replicas of a module: the caller's on the first one, and one more
// for each further replica. They divide LibTorch's computing threads among themselves.
//
// Thread safety: run() may be called from any thread; calls come one after another.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/ThreadLocalState.h>

namespace paceline {

class ReplicaThreads {
 public:
  explicit ReplicaThreads(int num_replicas);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Calls body(0) to body(count - 1) at the same time, each replica always on the same thread, with
  // the caller's grad mode and autocast, and waits for all. What the first of them threw, by
  // number, is thrown as an Error that names the replica and `what` it was doing.
  void run(int count, const char* what, const std::function<void(int replica)>& body);

 private:
  struct Job {
    int count = 0;
    int threads_of_each = 1;
    const std::function<void(int)>* body = nullptr;
    at::ThreadLocalState state;  // the caller's
  };
  void work(int replica);
  void attempt(int replica, const Job& job);

  std::mutex one_run_;  // held by the run under way
  std::mutex mutex_;    // guards what is below
  std::condition_variable begun_, ended_;
  const Job* job_ = nullptr;
  std::uint64_t num_runs_ = 0;
  int num_working_ = 0;
  bool stopped_ = false;
  std::vector<std::exception_ptr> errors_;  // of a run, each written by its replica's thread
  std::vector<std::jthread> threads_;       // the last member: they use the others
};

}  // namespace paceline
