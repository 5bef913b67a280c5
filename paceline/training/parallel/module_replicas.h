#pragma once

// Copies of a module that share its parameters' memory, and run on parts of a batch at the same
// time, in threads of this process. What DataParallel is made of, without the module's type.
//
// The forward passes of all replicas are one node of the graph. Its backward pass runs those of the
// replicas, also at the same time, and adds the gradients of each parameter up in one fixed order:
// a balanced tree over the replicas, split at the largest power of two, as the engine adds up
// ranks.
//
// Thread safety: none; one thread uses it. A graph that it made may be used after it.

#include <functional>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "paceline/training/parallel/replica_threads.h"

namespace paceline {

using ReplicaTensors = std::vector<at::Tensor>;
// The forward pass of one replica.
using ReplicaForward =
    std::function<ReplicaTensors(torch::nn::Module& replica, const ReplicaTensors& inputs)>;

// A module that each replica is a clone of, kept for the next passes.
struct ReplicaSet {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  std::vector<ReplicaTensors> parameters, buffers;  // of each module, in order
};

class ModuleReplicas {
 public:
  // Error(kInvalid) for less than one replica, or a module without a clone() like itself.
  ModuleReplicas(std::shared_ptr<torch::nn::Module> module, int num_replicas);

  // Cuts each input along dim 0 as at::chunk() does, gives each replica its parts, and concatenates
  // the outputs of the replicas along dim 0; those without dimensions become a vector. Undefined
  // inputs go to every replica. With one part the module itself runs.
  ReplicaTensors forward(const ReplicaTensors& inputs, const ReplicaForward& forward);
  int num_replicas() const { return num_replicas_; }

 private:
  std::shared_ptr<ReplicaSet> make_set() const;
  std::shared_ptr<ReplicaSet> take_set();
  void follow_module(ReplicaSet& set) const;

  const std::shared_ptr<torch::nn::Module> module_;  // owners: the user and this
  const int num_replicas_;
  const std::shared_ptr<ReplicaThreads> threads_;  // owners: this and its graphs
  // Owners: this and the graph that uses one; a set that no graph uses serves the next pass.
  std::vector<std::shared_ptr<ReplicaSet>> sets_;
};

}  // namespace paceline
