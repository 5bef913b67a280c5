#pragma once

// How the gradients of a bucket become their average over the ranks, where that is not a plain
// all-reduce: compressed, or over some of the ranks only. PyTorch's DDP communication hooks.

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/words.h"

namespace paceline {

struct GradientBucket {
  std::size_t index = 0;
  bool is_last = false;
  at::Tensor flat;                    // the gradients, one after the other, with padding
  std::vector<at::Tensor> gradients;  // each its place in `flat`, with its parameter's shape
};

// What a hook keeps between passes of one gradient of a bucket: a tensor of the hook's own.
struct KeptTensor {
  std::string kind;          // "error"; one of a kind for each gradient at most
  std::size_t gradient = 0;  // of the bucket
  at::Tensor tensor;         // float32; a view into the hook's memory, into which others are copied
  // Of every rank its own: a part of the gradients that has not been averaged yet. False: the same
  // on every rank.
  bool is_owed = false;
};

class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // With everything that must be the same on all ranks: "bf16_compress", "power_sgd rank 2".
  virtual std::string name() const = 0;
  // Collective; when buckets have been planned: what was kept of buckets by their index belongs to
  // others now. Their places stay until the next plan. What kept() gave of each parameter before is
  // copied into what it gives now.
  virtual void prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) {
    (void)group, (void)buckets;
  }
  // For checkpoints (hook_state.h), between passes: what it keeps of a bucket of the last
  // prepare(), and how far it has come, in words that are the same on every rank.
  virtual std::vector<KeptTensor> kept(const GradientBucket& bucket) {
    (void)bucket;
    return {};
  }
  virtual optim::Words progress() const { return {}; }
  virtual void set_progress(const optim::Words& words) { (void)words; }
  // Whether all ranks end a pass with the same gradients.
  virtual bool keeps_replicas_equal() const { return true; }
  // Starts a round of communication and returns it, or null when there is none left and
  // `bucket.flat` has the result. Round 0 starts when the bucket's gradients are there, while the
  // backward pass goes on; each later one at the end of that pass, once the round before it has
  // ended. Rounds of a pass start in the same order on every rank. An exception aborts the group.
  virtual WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) = 0;
};

}  // namespace paceline
