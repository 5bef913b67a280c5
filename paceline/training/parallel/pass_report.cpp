#include "paceline/training/parallel/pass_report.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <ATen/ATen.h>

namespace paceline {

namespace {

// A float32 holds whole numbers of 16 bits exactly; a sum of one of them and zeros does, too. A
// mean of it need not, but two different numbers have different means.
constexpr int kBits = 16;
constexpr std::size_t kHashValues = 64 / kBits;
constexpr std::size_t kIndexValues = 2;  // of the parameter, from 1
constexpr std::size_t kModuleValues = 1;
constexpr std::size_t kLossValues = 64 / kBits;

// Where each of these begins among the values of a rank.
constexpr std::size_t kIndex = kHashValues;
constexpr std::size_t kModule = kIndex + kIndexValues;
constexpr std::size_t kLoss = kModule + kModuleValues;
constexpr std::size_t kRankValues = kLoss + kLossValues;

void put(float* values, std::size_t count, std::uint64_t number) {
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(number >> (kBits * i) & ((1U << kBits) - 1));
}

}  // namespace

std::size_t PassReport::size(std::size_t num_parameters, int num_ranks) {
  return num_parameters + kRankValues * static_cast<std::size_t>(num_ranks);
}

PassReport::PassReport(at::Tensor place, std::size_t num_parameters, int rank, int num_ranks)
    : place_(std::move(place)),
      num_parameters_(num_parameters),
      rank_(rank),
      num_ranks_(num_ranks),
      values_(size(num_parameters, num_ranks)) {}

const float* PassReport::of_rank(int rank) const {
  return values_.data() + num_parameters_ + kRankValues * static_cast<std::size_t>(rank);
}

void PassReport::write(const Own& own) {
  std::fill(values_.begin(), values_.end(), 0.F);
  std::transform(own.used.begin(), own.used.end(), values_.begin(),
                 [](bool is_used) { return is_used ? 1.F : 0.F; });
  float* const mine = values_.data() + (of_rank(rank_) - values_.data());
  put(mine, kHashValues, own.hash);
  put(mine + kIndex, kIndexValues, own.not_finite ? *own.not_finite + 1 : 0);
  put(mine + kModule, kModuleValues, own.module);
  put(mine + kLoss, kLossValues, std::bit_cast<std::uint64_t>(own.loss));
  place_.copy_(at::from_blob(values_.data(), place_.sizes(), at::kFloat));
}

void PassReport::read(std::int64_t divisor) {
  divisor_ = divisor;
  at::from_blob(values_.data(), place_.sizes(), at::kFloat).copy_(place_);
}

bool PassReport::has_equal_hashes() const {
  for (int rank = 1; rank < num_ranks_; ++rank) {
    if (!std::equal(of_rank(rank), of_rank(rank) + kHashValues, of_rank(0))) return false;
  }
  return true;
}

std::uint64_t PassReport::number_at(const float* values, std::size_t count) const {
  std::uint64_t number = 0;
  for (std::size_t i = count; i-- > 0;) {
    const float value = values[i] * static_cast<float>(divisor_);
    number = (number << kBits) + static_cast<std::uint64_t>(std::llround(value));
  }
  return number;
}

std::vector<std::uint64_t> PassReport::modules() const {
  std::vector<std::uint64_t> numbers;
  for (int rank = 0; rank < num_ranks_; ++rank)
    numbers.push_back(number_at(of_rank(rank) + kModule, kModuleValues));
  return numbers;
}

std::optional<PassReport::NotFinite> PassReport::not_finite() const {
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const auto index = number_at(of_rank(rank) + kIndex, kIndexValues);
    if (index > 0) return NotFinite{rank, static_cast<std::size_t>(index - 1)};
  }
  return {};
}

double PassReport::loss() const {
  double sum = 0;
  for (int rank = 0; rank < num_ranks_; ++rank)
    sum += std::bit_cast<double>(number_at(of_rank(rank) + kLoss, kLossValues));
  return sum;
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
    log_.emplace();  // a loop's own log may have ended since
    log_->model(parameter_bytes_);
  }
  log_->step(samples_, std::chrono::duration<double>(now - begin_.value_or(now)).count(),
             std::exchange(waited_, 0.0));
  begin_ = now;
  samples_ = 0;
}

}  // namespace paceline
