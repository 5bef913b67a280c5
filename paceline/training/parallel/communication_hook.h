#pragma once

// Communication hooks, as in PyTorch's DDP. A hook replaces the plain all-reduce of a gradient
// bucket: it averages compressed gradients. The hooks are CompressHook, PowerSGDHook and TopKHook.
//
// Thread safety: none; the thread of the backward pass uses a hook.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/training/optim/metadata.h"
#include "paceline/training/optim/optimizer.h"

namespace paceline {

struct GradientBucket {
  std::size_t index = 0;
  bool is_last = false;
  at::Tensor flat;                    // all gradients in sequence, with padding
  std::vector<at::Tensor> gradients;  // views of `flat`, each with its parameter's shape
};

class CommunicationHook {
 public:
  // A tensor that a hook keeps between passes for one gradient of a bucket.
  struct KeptTensor {
    std::string kind;          // for example "error"; a gradient has at most one tensor of a kind
    std::size_t gradient = 0;  // number of the gradient in the bucket
    at::Tensor
        tensor;  // float32; a view of the hook's memory, into which restored values are copied
    // True for residuals (error feedback): each rank has its own, the part of its gradients that
    // has not been sent yet. False: the tensor is the same on every rank.
    bool is_residual = false;
  };

  virtual ~CommunicationHook() = default;

  // The name contains every option that must be the same on all ranks, for example "bf16_compress"
  // or "top_k (0.01)".
  virtual std::string name() const = 0;
  // Collective; called when buckets have been planned. Bucket indices and the positions of
  // gradients are valid until the next plan. After the call, the caller copies, for each parameter,
  // the tensors that kept() returned before the call into the tensors that kept() returns after it.
  virtual void prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) {
    (void)group, (void)buckets;
  }
  // For checkpoints, between passes: the tensors that the hook keeps for a bucket of the last
  // prepare(), and the hook's progress, as words (metadata.h) that are the same on every rank.
  virtual std::vector<KeptTensor> kept(const GradientBucket& bucket) {
    (void)bucket;
    return {};
  }
  virtual optim::Metadata progress() const { return {}; }
  virtual void set_progress(const optim::Metadata& words) { (void)words; }
  // Whether all ranks have the same gradients after a pass.
  virtual bool keeps_replicas_equal() const { return true; }
  // Starts a round of communication and returns its Work; null when there are no more rounds and
  // `bucket.flat` has the result. Round 0 starts as soon as the bucket has all its gradients, while
  // the backward pass continues. Each later round starts at the end of the pass, once the previous
  // round has ended. Every rank must start the rounds of a pass in the same order. An exception
  // aborts the group.
  virtual WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) = 0;
};

// The hooks below send gradients in fewer bytes: as 16-bit floats, as low-rank factors, or only
// their largest elements. Their residuals and factors are saved in checkpoints (HookState).

// Halves the bytes of float32: elements are sent as float16 or bfloat16, sums are computed in
// float32. Equivalent to PyTorch's fp16_compress_hook and bf16_compress_hook. A value beyond the
// range of float16 (65504) becomes infinite.
class CompressHook : public CommunicationHook {
 public:
  // Error(kInvalid) unless `type` is at::kHalf or at::kBFloat16.
  explicit CompressHook(at::ScalarType type);
  std::string name() const override;
  void prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) override;
  WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) override;

 private:
  const at::ScalarType type_;
  std::vector<at::Tensor> narrow_;  // [bucket]
};

struct PowerSGDOptions {
  std::int64_t rank = 1;
  // Gradients are sent uncompressed until this many passes have been averaged.
  std::int64_t start_step = 1000;
  // A matrix is compressed if its factors take fewer bytes than its own bytes divided by this rate.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  // adds a pass's compression error to the next pass's gradients
  bool warm_start = true;          // a pass begins with the factors of the previous one
  double orthogonalization_epsilon = 0;
  std::uint64_t seed = 0;  // for random factors; the same on every rank
};

// PowerSGD (Vogels, Karimireddy and Jaggi, 2019): a gradient is treated as an n x m matrix (dim 0
// by all other dimensions), and sent as factors of n x rank and m x rank. Options and their
// defaults are PyTorch's. PyTorch's limits on start_step do not apply, because buckets do not
// change after the first pass. Gradients are float32. On the CPU all ranks get the same bits even
// if their processors differ; on CUDA devices they do only if devices and LibTorch are the same.
class PowerSGDHook : public CommunicationHook {
 public:
  // Error(kInvalid) unless rank is at least 1, min_compression_rate above 0, and the epsilon at
  // least 0.
  explicit PowerSGDHook(const PowerSGDOptions& options);
  std::string name() const override;
  void prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) override;
  WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) override;
  std::vector<KeptTensor> kept(const GradientBucket& bucket) override;
  optim::Metadata progress() const override;
  void set_progress(const optim::Metadata& words) override;

 private:
  struct Matrix {
    std::size_t gradient;  // number of the gradient in the bucket
    at::Tensor p, q;       // n x rank and m x rank, in State's memory
  };
  struct State {
    std::vector<Matrix> matrices;
    std::vector<std::size_t> whole;  // gradients that are sent uncompressed
    at::Tensor whole_and_p, qs;      // the values sent in round 0 and in round 1
    std::vector<at::Tensor> whole_views;
    at::Tensor input, error;  // each as large as the whole bucket
    bool compresses = false;  // in this pass
  };

  void start_from_random(State& state) const;
  WorkPtr send_p(ProcessGroup& group, const GradientBucket& bucket, State& state) const;
  WorkPtr send_q(ProcessGroup& group, const GradientBucket& bucket, State& state) const;
  void multiply(const GradientBucket& bucket, State& state) const;

  const PowerSGDOptions options_;
  std::int64_t num_steps_ = 0;
  std::vector<State> states_;  // [bucket]
};

// Sends the elements of each bucket with the largest magnitudes, with their indices; the other
// elements are added to the next pass's gradients (Aji and Heafield, 2017; Stich, Cordonnier and
// Jaggi, 2018). Gradients are float32. Each rank sends 8 bytes per selected element to every other
// rank.
class TopKHook : public CommunicationHook {
 public:
  // `density`: the share of the elements to send. Error(kInvalid) unless 0 < density <= 1.
  explicit TopKHook(double density = 0.01);
  std::string name() const override;
  void prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) override;
  WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) override;
  std::vector<KeptTensor> kept(const GradientBucket& bucket) override;

 private:
  struct State {
    at::Tensor error;
    at::Tensor mine, all;  // indices, then the bits of the values
  };
  const double density_;
  std::vector<State> states_;  // [bucket]
};

}  // namespace paceline
