#pragma once

// Gradients that travel in fewer bytes: as 16-bit floats, as low-rank factors, or as their largest
// elements only. What the hooks keep between passes (what the last ones have left out, and factors)
// goes into checkpoints (hook_state.h).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "paceline/training/parallel/communication_hook.h"

namespace paceline {

// Half the bytes of float32: the elements travel as float16 or bfloat16, sums are float32.
// PyTorch's fp16_compress_hook and bf16_compress_hook. A float16 of more than 65504 becomes
// infinite.
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

struct PowerSgdOptions {
  std::int64_t rank = 1;
  // Until so many passes have been averaged, gradients travel whole.
  std::int64_t start_step = 1000;
  // A matrix is compressed if that takes less than its bytes divided by this.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  // what a pass leaves out is added to the next pass's gradients
  bool warm_start = true;          // a pass begins with the last one's factors
  double orthogonalization_epsilon = 0;
  std::uint64_t seed = 0;  // of the first factors, the same on every rank
};

// Vogels, Karimireddy and Jaggi, 2019: a gradient of n x m, dim 0 and the rest, travels as factors
// of n x rank and m x rank. Options and their defaults are PyTorch's, whose limits on start_step do
// not apply here: buckets do not change after the first pass. Float32 gradients on the CPU. All
// ranks get the same bits, also where their processors differ (low_rank.h).
class PowerSgdHook : public CommunicationHook {
 public:
  // Error(kInvalid) for a rank below 1, or a rate or epsilon below 0.
  explicit PowerSgdHook(const PowerSgdOptions& options);
  std::string name() const override;
  void prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) override;
  WorkPtr start_round(ProcessGroup& group, const GradientBucket& bucket, int round) override;
  std::vector<KeptTensor> kept(const GradientBucket& bucket) override;
  optim::Words progress() const override;
  void set_progress(const optim::Words& words) override;

 private:
  struct Matrix {
    std::size_t gradient;  // of the bucket
    at::Tensor p, q;       // n x rank and m x rank, in State's memory
  };
  struct State {
    std::vector<Matrix> matrices;
    std::vector<std::size_t> whole;  // gradients that travel as they are
    at::Tensor whole_and_p, qs;      // what travels: round 0, round 1
    std::vector<at::Tensor> whole_places;
    at::Tensor input, error;  // of the whole bucket
    bool compresses = false;  // in this pass
  };

  void start_from_random(State& state) const;
  WorkPtr send_p(ProcessGroup& group, const GradientBucket& bucket, State& state) const;
  WorkPtr send_q(ProcessGroup& group, const GradientBucket& bucket, State& state) const;
  void multiply(const GradientBucket& bucket, State& state) const;

  const PowerSgdOptions options_;
  std::int64_t num_steps_ = 0;
  std::vector<State> states_;  // [bucket]
};

// The largest elements of each bucket, by magnitude, travel with their indices; the others are
// added to the next pass's (Aji and Heafield, 2017; Stich, Cordonnier and Jaggi, 2018). Float32
// gradients; 8 bytes an element that travels, from every rank to every rank.
class TopKHook : public CommunicationHook {
 public:
  // Error(kInvalid) unless 0 < density <= 1: the share of the elements.
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
