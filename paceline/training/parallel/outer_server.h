#pragma once

// The server of learners that do not wait for all other learners: asynchronous DiLoCo. It has the
// parameters from which the learners begin, and the state of the outer optimizer (SGD with Nesterov
// momentum). LowCommunication is the learners' side.
//
//   OuterServer server({.quorum = 3, .grace = 2s});
//   auto workers = rpc::join({.prepare = [&](rpc::Workers& self) { server.serve(self); }});
//   workers->wait_until_gone("learner0");
//
// A round of a fragment needs a quorum of updates. It then ends as soon as all learners that are
// present have sent theirs, or when the grace window is over. The outer step is taken on the mean
// of the updates, weighted by tokens and by age; then all learners that have sent an update
// continue from the result. The update of a slower learner becomes part of a later round, with a
// greater age. The server does not wait for a learner that is lost; a learner that joins later, or
// again, begins from the current parameters. An update with a value that is not finite is refused;
// its learner gets the error.
//
// Thread safety: every method may be called from any thread.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "paceline/engine/rpc/workers.h"

namespace paceline {

struct OuterServerOptions;

class OuterServer {
 public:
  struct Update {
    std::string learner;      // the name of its worker
    std::int64_t tokens = 0;  // the number of tokens that it trained on
    std::int64_t age = 0;     // rounds that have ended since the learner got its parameters
  };
  struct Stats {
    std::uint64_t rounds = 0, updates = 0;
    std::int64_t largest_age = 0;
    double mean_age = 0;
  };

  // Throws Error(kInvalid) for options that are out of range.
  explicit OuterServer(const OuterServerOptions& options);
  OuterServer(const OuterServer&) = delete;
  OuterServer& operator=(const OuterServer&) = delete;
  ~OuterServer();

  // Serves the learners of one model. `workers` must leave the job before `workers` is destroyed.
  void serve(rpc::Workers& workers);

  Stats stats() const;
  // Return copies for a checkpoint, float32 [elements]; undefined before the first learner has
  // joined.
  at::Tensor anchor() const;
  at::Tensor momentum() const;
  // Begins with these tensors, not with the first learner's parameters. Error(kInvalid) if a
  // learner has joined, or unless both tensors are one-dimensional, float32 and of one size.
  void restore(const at::Tensor& anchor, const at::Tensor& momentum);

 private:
  class Rounds;
  const std::shared_ptr<Rounds> rounds_;  // owners: this object and the handlers
};

struct OuterServerOptions {
  double lr = 0.7, momentum = 0.9;
  // The number of updates with which a round may end; each lost learner reduces it by one.
  std::size_t quorum = 1;
  // How long a round waits for further learners once it has its quorum.
  std::chrono::milliseconds grace{0};
  // The weight of an update in the mean, at least 0. Null: its tokens, divided by 1 + age.
  std::function<double(const OuterServer::Update&)> weight{};
};

}  // namespace paceline
