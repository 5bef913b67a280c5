#include "paceline/training/parallel/reducer/pass_monitor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/engine/core/logical_shards.h"
#include "paceline/training/parallel/reducer/gradient_buckets.h"
#include "paceline/training/parallel/reducer/vectorised_loops.h"
#include "paceline/training/tensor/compute_settings.h"
#include "paceline/training/tensor/tensor_marks.h"

namespace paceline {

StepPasses::StepPasses(ProcessGroup& group, std::int64_t logical_shards, c10::Device device)
    : group_(group), logical_shards_(logical_shards), divisor_(group.world_size()) {
  std::string own = "no logical shards";
  if (has_shards()) {
    own_count_ = shards_of(logical_shards, group.world_size(), group.rank()).count;
    detail::settle_thread_count();
    // The order of additions within a rank's own computation depends on its number of threads.
    own = fmt::format("{} logical shards, {} threads", logical_shards, at::get_num_threads());
  }
  const auto all = all_gather_object(group, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank] == own,
          "{}: DistributedDataParallel has {} here and {} on rank {}; the bits of the results "
          "depend on the numbers of logical shards and of threads, so give every rank the same "
          "numbers (paceline run --logical-shards L --threads-per-rank T)",
          group.self(), own, all[rank], rank);
  }
  if (!has_shards() || (device.is_cpu() && group.backend() == "paceline")) return;
  fail(ErrorCode::kUnsupported,
       "{}: logical shards need parameters on the CPU and the backend paceline, whose sums have a "
       "fixed order; here the parameters are on {} and the backend is {}",
       group.self(), device.str(), group.backend());
}

// The training loop chooses the pass that ends a step (set_synchronize()); it must be the last of
// the step's own_count_ passes.
void StepPasses::require_position() const {
  if (!has_shards() || synchronize_ == averages()) return;
  fail(ErrorCode::kInvalid,
       "{}: with {} logical shards on {} ranks, the backward passes of a step on this rank are {}, "
       "and only the last pass averages; this is pass {} of a step, and it {}. Take batches from a "
       "DataLoader with as many logical shards, run one backward pass for each batch, and call "
       "set_requires_gradient_sync(batch.ends_step) before the forward pass, as "
       "train::TrainingRun does",
       group_.self(), logical_shards_, group_.world_size(), own_count_, num_done_ + 1,
       synchronize_ ? "averages" : "does not");
}

namespace {

// A float32 represents integers of 16 bits exactly, and also the sum of one of these and zeros. The
// mean need not be exact, but two different numbers have different means.
constexpr int kBits = 16;

// The layout of each rank's values: for each number, its offset and how many values it takes.
constexpr std::size_t kHash = 0, kHashValues = 64 / kBits;
constexpr std::size_t kIndex = kHash + kHashValues,
                      kIndexValues = 2;  // the parameter's number, from 1
constexpr std::size_t kModule = kIndex + kIndexValues, kModuleValues = 1;
constexpr std::size_t kLoss = kModule + kModuleValues, kLossValues = 64 / kBits;
constexpr std::size_t kRankValues = kLoss + kLossValues;

void put(float* values, std::size_t count, std::uint64_t number) {
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(number >> (kBits * i) & ((1U << kBits) - 1));
}

std::uint64_t number_at(const float* values, std::size_t count, std::int64_t divisor) {
  std::uint64_t number = 0;
  for (std::size_t i = count; i-- > 0;) {
    const float value = values[i] * static_cast<float>(divisor);
    number = (number << kBits) + static_cast<std::uint64_t>(std::llround(value));
  }
  return number;
}

}  // namespace

bool is_finite(const at::Tensor& dense) {
  const auto count = static_cast<std::size_t>(dense.numel());
  const void* const data = dense.data_ptr();
  switch (dense.scalar_type()) {
    case at::kFloat:
      return !has_non_finite_32(static_cast<const std::uint32_t*>(data), count);
    case at::kDouble:
      return !has_non_finite_64(static_cast<const std::uint64_t*>(data), count);
    case at::kHalf:
      return !has_non_finite_16(static_cast<const std::uint16_t*>(data), count, 0x7c00);
    case at::kBFloat16:
      return !has_non_finite_16(static_cast<const std::uint16_t*>(data), count, 0x7f80);
    default:
      return true;
  }
}

PassMonitor::PassMonitor(ProcessGroup& group, const std::vector<NamedParameter>& parameters,
                         NonFinite non_finite, std::int64_t check_replicas_every,
                         std::uint64_t module)
    : group_(group),
      parameters_(parameters),
      non_finite_(non_finite),
      is_on_cpu_(parameters.front().tensor.is_cpu()),
      module_(module),
      values_(parameters.size() + kRankValues * static_cast<std::size_t>(group.world_size())) {
  if (check_replicas_every > 0 && is_on_cpu_ && group.world_size() > 1)
    guard_.emplace(parameters, check_replicas_every);
}

void PassMonitor::note_gradient(std::size_t parameter) {
  if (non_finite_ == NonFinite::kIgnore || not_finite_ || !is_on_cpu_) return;
  const at::Tensor& gradient = own_gradient(parameters_[parameter].tensor);
  if (!gradient.defined()) return;
  if (non_finite_ == NonFinite::kReport && gradient.nbytes() >= kAloneBytes) return;
  if (!is_finite(gradient)) not_finite_ = parameter;
}

const float* PassMonitor::of_rank(int rank) const {
  return values_.data() + parameters_.size() + kRankValues * static_cast<std::size_t>(rank);
}

void PassMonitor::write(const std::vector<bool>& used, std::int64_t step, bool compares) {
  has_fetched_ = false;
  std::fill(values_.begin(), values_.end(), 0.F);
  std::transform(used.begin(), used.end(), values_.begin(),
                 [](bool is_used) { return is_used ? 1.F : 0.F; });
  float* const own = values_.data() + (of_rank(group_.rank()) - values_.data());
  put(own + kHash, kHashValues, guard_ && compares ? guard_->hash_part(step) : 0);
  put(own + kIndex, kIndexValues, not_finite_ ? *not_finite_ + 1 : 0);
  put(own + kModule, kModuleValues, module_);
  put(own + kLoss, kLossValues, std::bit_cast<std::uint64_t>(own_loss_.value_or(0)));
  const at::Tensor values = at::from_blob(values_.data(), place_.sizes(), at::kFloat);
  is_on_cpu_ ? place_.copy_(values) : place_.copy_(values.pin_memory(), /*non_blocking=*/true);
}

// On a device this call waits until the report has been reduced.
void PassMonitor::fetch() {
  if (!std::exchange(has_fetched_, true))
    at::from_blob(values_.data(), place_.sizes(), at::kFloat).copy_(place_);
}

bool PassMonitor::is_used(std::size_t parameter) {
  fetch();
  return values_[parameter] > 0;
}

bool PassMonitor::has_equal_hashes() const {
  for (int rank = 1; rank < group_.world_size(); ++rank) {
    if (!std::equal(of_rank(rank), of_rank(rank) + kHashValues, of_rank(0))) return false;
  }
  return true;
}

void PassMonitor::read(std::int64_t divisor, std::int64_t step, bool compares) {
  if (!is_on_cpu_ && !own_loss_) return;
  fetch();
  const int num_ranks = group_.world_size();
  double loss = 0;
  for (int rank = 0; rank < num_ranks; ++rank)
    loss += std::bit_cast<double>(number_at(of_rank(rank) + kLoss, kLossValues, divisor));
  step_loss_ = loss / static_cast<double>(divisor);
  if (!is_on_cpu_) return;
  // Without this check, gradients of two different modules of the same shape would be averaged with
  // each other.
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto module = number_at(of_rank(rank) + kModule, kModuleValues, divisor);
    check(
        module == module_,
        "{}: this backward pass belongs to DistributedDataParallel module {} on this rank, but to "
        "module {} on {} (modules are numbered in the order in which they were made): run the "
        "forward and backward passes of several modules in the same order on every rank",
        group_.self(), module_, module, group_.name_of_member(static_cast<std::size_t>(rank)));
  }
  if (guard_ && compares && !has_equal_hashes()) guard_->report(group_, step);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto index = number_at(of_rank(rank) + kIndex, kIndexValues, divisor);
    if (index > 0) return report_non_finite(rank, index - 1, step, false);
  }
}

void PassMonitor::judge_alone(std::int64_t step) {
  step_loss_ = own_loss_.value_or(0);
  if (not_finite_) report_non_finite(0, *not_finite_, step, true);
}

void PassMonitor::begin_step() {
  not_finite_.reset();
  own_loss_.reset();
}

void PassMonitor::report_non_finite(int rank, std::size_t parameter, std::int64_t step,
                                    bool is_alone) {
  const std::string what = fmt::format("{}'s gradient of parameter {} is not finite in step {}",
                                       group_.name_of_member(static_cast<std::size_t>(rank)),
                                       parameters_[parameter].name, step + 1);
  if (non_finite_ == NonFinite::kError) fail(ErrorCode::kInvalid, "{}: {}", group_.self(), what);
  const std::uint64_t count = ++num_non_finite_;
  if (group_.rank() != 0 || !std::has_single_bit(count)) return;
  log::warning(fmt::format("{}{}{}", what,
                           is_alone ? "" : "; every rank's average is not finite either",
                           count > 1 ? fmt::format("; {} steps so far", count)
                                     : "; to end the run instead, set "
                                       "DistributedDataParallelOptions::non_finite to "
                                       "NonFinite::kError"));
}

void PassCounter::begin_forward(std::int64_t samples, bool trains) {
  if (!trains) {
    begin_.reset();
    return;
  }
  if (!begin_) begin_ = Clock::now();
  samples_ += samples;
}

bool PassCounter::begins_step(std::uint64_t version) {
  const auto before = std::exchange(version_, version);
  if (!before) return true;
  saw_change_ = saw_change_ || version != *before;
  return version != *before || (!saw_change_ && ++num_unchanged_ >= kPatience);
}

void PassCounter::end_backward(double waited, std::uint64_t version) {
  waited_ += waited;
  if (!begins_step(version)) return;
  const auto now = Clock::now();
  if (!log_ || !log_->counts()) {
    log_.emplace();  // begins to count if the log that counted before has ended
    log_->model(parameter_bytes_);
  }
  log_->step(samples_, std::chrono::duration<double>(now - begin_.value_or(now)).count(),
             std::exchange(waited_, 0.0));
  begin_ = now;
  samples_ = 0;
}

}  // namespace paceline
