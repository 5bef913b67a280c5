#pragma once

// The threads and the modules of DataParallel's replicas.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <torch/nn/module.h>

#include "paceline/training/parallel/data_parallel.h"

namespace paceline::detail {

// The threads that work on the replicas of a module: the caller's thread works on the first
// replica, and every other replica has a thread of its own. The threads share LibTorch's intra-op
// threads equally.
//
// Thread safety: any thread may call run(); only one call runs at a time.
class ReplicaThreads {
 public:
  explicit ReplicaThreads(int num_replicas);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  // Calls body(0) to body(count - 1) at the same time, each replica always on the same thread, with
  // the caller's grad mode and autocast, and waits for all of them. If replicas throw, the
  // exception of the first of them is thrown, as an Error that names the replica and `what` it was
  // doing.
  void run(int count, const char* what, const std::function<void(int replica)>& body);

 private:
  struct Job {
    int count = 0;
    int threads_of_each = 1;
    const std::function<void(int)>* body = nullptr;
    at::ThreadLocalState state;  // the caller's thread-local state
  };
  void work(int replica);
  void attempt(int replica, const Job& job);

  std::mutex one_run_;  // held while a run is under way
  std::mutex mutex_;    // guards the members below
  std::condition_variable begun_, ended_;
  const Job* job_ = nullptr;
  std::uint64_t num_runs_ = 0;
  int num_working_ = 0;
  bool stopped_ = false;
  std::vector<std::exception_ptr> errors_;  // [replica]; written by its thread in a run
  std::vector<std::jthread> threads_;  // declared last, because the threads use the other members
};

// Clones of a module, one for each replica, kept for later passes.
struct ReplicaSet {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<ReplicaTensors> parameters, buffers;  // [module], in order
};

}  // namespace paceline::detail
