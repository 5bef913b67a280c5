#include "paceline/training/parallel/communication_hook.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/metadata_words.h"
#include "paceline/training/parallel/reducer/vectorised_loops.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/tensor_marks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

void require_float(const std::vector<GradientBucket>& buckets, const std::string& hook) {
  for (const auto& bucket : buckets) {
    check(bucket.flat.scalar_type() == at::kFloat,
          "communication hook {} takes float32 gradients, not {}", hook,
          c10::toString(bucket.flat.scalar_type()));
  }
}

// Returns memory for collectives: symmetric, or on the bucket's device.
at::Tensor memory_for(ProcessGroup& group, const GradientBucket& bucket, at::IntArrayRef sizes,
                      at::ScalarType type) {
  if (bucket.flat.is_cpu()) return empty_symmetric(group, sizes, type);
  return at::zeros(sizes, bucket.flat.options().dtype(type));
}

// Returns the gradient as a matrix with a row for each index of dim 0; a copy if its memory has
// another order.
at::Tensor as_matrix(const at::Tensor& gradient) {
  return gradient.reshape({gradient.size(0), -1});
}

// Returns the part of `like_flat` at the position that `gradient` has in the bucket. `like_flat`
// has the bucket's layout.
at::Tensor same_place(const at::Tensor& like_flat, const GradientBucket& bucket,
                      const at::Tensor& gradient) {
  const auto offset = gradient.data_ptr<float>() - bucket.flat.data_ptr<float>();
  return like_flat.as_strided(gradient.sizes(), gradient.strides(),
                              like_flat.storage_offset() + offset);
}

// Adds the residuals of a hook with error feedback: the part of each gradient that it has not sent.
void add_errors(const at::Tensor& errors, const GradientBucket& bucket,
                std::vector<CommunicationHook::KeptTensor>& kept) {
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i)
    kept.push_back({"error", i, same_place(errors, bucket, bucket.gradients[i]), true});
}

// On a CUDA device the next three functions do not wait for the device.
void orthogonalize_on_device(const at::Tensor& matrix, double epsilon) {
  const at::Tensor all = matrix.to(at::kDouble);
  for (std::int64_t i = 0; i < all.size(1); ++i) {
    at::Tensor column = all.select(1, i);
    const at::Tensor before = all.narrow(1, 0, i);
    for (int pass = 0; pass < 2 && i > 0; ++pass) column.sub_(before.mv(before.t().mv(column)));
    const at::Tensor norm = column.square().sum().sqrt() + epsilon;
    column.copy_(at::where(norm > 0, column / norm, column));
  }
  matrix.copy_(all);
}

void orthogonalize_columns(const at::Tensor& matrix, double epsilon) {
  if (!matrix.is_cpu()) return orthogonalize_on_device(matrix, epsilon);
  orthogonalize(matrix.data_ptr<float>(), matrix.size(0), matrix.size(1), epsilon);
  count_write(matrix);
}

at::Tensor product_of_factors(const at::Tensor& p, const at::Tensor& q) {
  if (!p.is_cpu()) return p.mm(q.t());
  at::Tensor product = at::empty({p.size(0), q.size(0)}, at::kFloat);
  multiply_factors(p.data_ptr<float>(), q.data_ptr<float>(), p.size(0), q.size(0), p.size(1),
                   product.data_ptr<float>());
  return product;
}

constexpr const char* kNumSteps = "num_steps";

}  // namespace

// ---- 16-bit floats

CompressHook::CompressHook(at::ScalarType type) : type_(type) {
  check(is_16_bit(type),
        "CompressHook: {} is not a 16-bit float; choose at::kHalf or at::kBFloat16",
        c10::toString(type));
}

std::string CompressHook::name() const {
  return type_ == at::kHalf ? "fp16_compress" : "bf16_compress";
}

void CompressHook::prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) {
  narrow_.clear();
  for (const auto& bucket : buckets)
    narrow_.push_back(memory_for(group, bucket, bucket.flat.sizes(), type_));
}

WorkPtr CompressHook::start_round(ProcessGroup& group, const GradientBucket& bucket, int round) {
  const at::Tensor& narrow = narrow_[bucket.index];
  if (round == 0) {
    narrow.copy_(bucket.flat);
    return all_reduce(group, narrow, ReduceOp::kMean, {.async_op = true});
  }
  bucket.flat.copy_(narrow);
  return nullptr;
}

// ---- low rank

PowerSGDHook::PowerSGDHook(const PowerSGDOptions& options) : options_(options) {
  check(options.rank >= 1, "PowerSGDHook: rank {} is less than 1", options.rank);
  check(options.min_compression_rate > 0 && options.orthogonalization_epsilon >= 0,
        "PowerSGDHook: min_compression_rate {} must be above 0, orthogonalization_epsilon {} at "
        "least 0",
        options.min_compression_rate, options.orthogonalization_epsilon);
}

std::string PowerSGDHook::name() const {
  return fmt::format(
      "power_sgd (rank {}, start_step {}, rate {}, feedback {}, warm {}, epsilon {}, seed {})",
      options_.rank, options_.start_step, options_.min_compression_rate,
      options_.use_error_feedback, options_.warm_start, options_.orthogonalization_epsilon,
      options_.seed);
}

void PowerSGDHook::prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) {
  require_float(buckets, "power_sgd");
  states_.clear();
  for (const auto& bucket : buckets) {
    State state;
    std::int64_t num_whole = 0, num_p = 0, num_q = 0;
    const auto rank_of = [this](const at::Tensor& gradient) {
      const std::int64_t n = gradient.size(0);
      return std::min({n, gradient.numel() / n, options_.rank});
    };
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const at::Tensor& gradient = bucket.gradients[i];
      const auto count = static_cast<double>(gradient.numel());
      if (gradient.dim() >= 2 && gradient.numel() > 0) {
        const std::int64_t n = gradient.size(0), m = gradient.numel() / n, r = rank_of(gradient);
        if (static_cast<double>((n + m) * r) * options_.min_compression_rate < count) {
          state.matrices.push_back({i, {}, {}});
          num_p += n * r;
          num_q += m * r;
          continue;
        }
      }
      state.whole.push_back(i);
      num_whole += gradient.numel();
    }
    state.whole_and_p =
        memory_for(group, bucket, {std::max<std::int64_t>(num_whole + num_p, 1)}, at::kFloat);
    state.qs = memory_for(group, bucket, {std::max<std::int64_t>(num_q, 1)}, at::kFloat);
    std::int64_t at_p = 0, at_q = 0;
    for (const std::size_t i : state.whole) {
      const at::Tensor& gradient = bucket.gradients[i];
      state.whole_views.push_back(
          state.whole_and_p.narrow(0, at_p, gradient.numel()).view(gradient.sizes()));
      at_p += gradient.numel();
    }
    for (Matrix& matrix : state.matrices) {
      const at::Tensor& gradient = bucket.gradients[matrix.gradient];
      const std::int64_t n = gradient.size(0), m = gradient.numel() / n, r = rank_of(gradient);
      matrix.p = state.whole_and_p.narrow(0, at_p, n * r).view({n, r});
      matrix.q = state.qs.narrow(0, at_q, m * r).view({m, r});
      at_p += n * r;
      at_q += m * r;
    }
    if (options_.use_error_feedback) state.error = at::zeros_like(bucket.flat);
    start_from_random(state);
    states_.push_back(std::move(state));
  }
}

// Draws new factors, which are different in each step and the same on all ranks and devices.
void PowerSGDHook::start_from_random(State& state) const {
  auto generator =
      at::detail::createCPUGenerator(options_.seed + static_cast<std::uint64_t>(num_steps_));
  for (const Matrix& matrix : state.matrices) {
    const at::Tensor drawn = at::empty(matrix.q.sizes(), at::kFloat).normal_(0, 1, generator);
    matrix.q.copy_(drawn, /*non_blocking=*/true);
  }
}

WorkPtr PowerSGDHook::start_round(ProcessGroup& group, const GradientBucket& bucket, int round) {
  State& state = states_[bucket.index];
  if (round == 0) {
    state.compresses = num_steps_ >= options_.start_step;
    if (state.compresses) return send_p(group, bucket, state);
    return all_reduce(group, bucket.flat, ReduceOp::kMean, {.async_op = true});
  }
  if (state.compresses && round == 1) return send_q(group, bucket, state);
  if (state.compresses) multiply(bucket, state);
  if (bucket.is_last) ++num_steps_;
  return nullptr;
}

// Sends the mean of the factors P, not their sum: orthogonalising removes any constant factor.
WorkPtr PowerSGDHook::send_p(ProcessGroup& group, const GradientBucket& bucket,
                             State& state) const {
  if (options_.use_error_feedback) {
    bucket.flat.add_(state.error);
    state.input = bucket.flat.clone();
  }
  for (std::size_t i = 0; i < state.whole.size(); ++i)
    state.whole_views[i].copy_(bucket.gradients[state.whole[i]]);
  if (!options_.warm_start) start_from_random(state);
  for (Matrix& matrix : state.matrices) {
    orthogonalize_columns(matrix.q, options_.orthogonalization_epsilon);
    at::mm_out(matrix.p, as_matrix(bucket.gradients[matrix.gradient]), matrix.q);
  }
  return all_reduce(group, state.whole_and_p, ReduceOp::kMean, {.async_op = true});
}

WorkPtr PowerSGDHook::send_q(ProcessGroup& group, const GradientBucket& bucket,
                             State& state) const {
  for (Matrix& matrix : state.matrices) {
    orthogonalize_columns(matrix.p, options_.orthogonalization_epsilon);
    at::mm_out(matrix.q, as_matrix(bucket.gradients[matrix.gradient]).t(), matrix.p);
  }
  return all_reduce(group, state.qs, ReduceOp::kMean, {.async_op = true});
}

void PowerSGDHook::multiply(const GradientBucket& bucket, State& state) const {
  for (std::size_t i = 0; i < state.whole.size(); ++i)
    bucket.gradients[state.whole[i]].copy_(state.whole_views[i]);
  for (const Matrix& matrix : state.matrices) {
    const at::Tensor& gradient = bucket.gradients[matrix.gradient];
    gradient.copy_(product_of_factors(matrix.p, matrix.q).view(gradient.sizes()));
  }
  if (options_.use_error_feedback) at::sub_out(state.error, state.input, bucket.flat);
}

std::vector<CommunicationHook::KeptTensor> PowerSGDHook::kept(const GradientBucket& bucket) {
  const State& state = states_.at(bucket.index);
  std::vector<CommunicationHook::KeptTensor> kept;
  if (options_.use_error_feedback) add_errors(state.error, bucket, kept);
  if (!options_.warm_start) return kept;
  for (const Matrix& matrix : state.matrices)
    kept.push_back({"factor", matrix.gradient, matrix.q, false});
  return kept;
}

optim::Metadata PowerSGDHook::progress() const { return {{kNumSteps, optim::to_word(num_steps_)}}; }

void PowerSGDHook::set_progress(const optim::Metadata& words) {
  num_steps_ = optim::count_in(words, kNumSteps, "power_sgd");
}

// ---- the largest elements

TopKHook::TopKHook(double density) : density_(density) {
  check(density > 0 && density <= 1, "TopKHook: density {} is not above 0 and at most 1", density);
}

std::string TopKHook::name() const { return fmt::format("top_k ({})", density_); }

void TopKHook::prepare(ProcessGroup& group, const std::vector<GradientBucket>& buckets) {
  require_float(buckets, "top_k");
  states_.clear();
  for (const auto& bucket : buckets) {
    const auto k =
        static_cast<std::int64_t>(std::ceil(static_cast<double>(bucket.flat.numel()) * density_));
    states_.push_back({at::zeros_like(bucket.flat), memory_for(group, bucket, {2, k}, at::kInt),
                       memory_for(group, bucket, {group.world_size(), 2, k}, at::kInt)});
  }
}

WorkPtr TopKHook::start_round(ProcessGroup& group, const GradientBucket& bucket, int round) {
  State& state = states_[bucket.index];
  if (round == 0) {
    state.error.add_(bucket.flat);
    const std::int64_t k = state.mine.size(1);
    const at::Tensor indices = std::get<1>(state.error.abs().topk(k, 0, true, false));
    state.mine[0].copy_(indices);
    state.mine[1].copy_(state.error.index_select(0, indices).view(at::kInt));
    state.error.index_fill_(0, indices, 0);
    return all_gather_into_tensor(group, state.all, state.mine, {.async_op = true});
  }
  bucket.flat.zero_();
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const at::Tensor values = state.all[rank][1].view(at::kFloat);
    bucket.flat.index_add_(0, state.all[rank][0].to(at::kLong), values);
  }
  bucket.flat.div_(group.world_size());
  return nullptr;
}

std::vector<CommunicationHook::KeptTensor> TopKHook::kept(const GradientBucket& bucket) {
  std::vector<CommunicationHook::KeptTensor> kept;
  add_errors(states_.at(bucket.index).error, bucket, kept);
  return kept;
}

}  // namespace paceline
