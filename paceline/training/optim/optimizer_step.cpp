// A step of an Optimizer (optimizer.h).

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <mutex>
#include <span>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/training/optim/kernels.h"
#include "paceline/training/optim/optimizer.h"
#include "paceline/training/optim/tensor_blocks.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline::optim {
namespace {

// A norm's partial sums are of the rows' blocks.
static_assert(kBlock == FlatLayout::kBlock);

// Elements that one thread updates at a time.
constexpr std::int64_t kGrain = 32768;

std::byte* element(const at::Tensor& tensor, std::int64_t at) {
  return static_cast<std::byte*>(tensor.data_ptr()) +
         static_cast<std::size_t>(at) * tensor.itemsize();
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

void Optimizer::step() try {
  if (before_step_) before_step_();
  require_parameters();
  const at::NoGradGuard no_grad;
  const auto gradients = this->gradients();
  verify_unread_parameters(gradients);
  if (norms_ == Norms::kPerParameter) {
    if (!parts_.layers) require_whole_parameters(name(), parameters_);
    measure_norms(gradients);
  }
  // With one copy nobody may read the old values any more, and then everybody reads the new ones.
  if (copy_) wait_for_host();
  if (host_parts_) host_parts_->forget();
  for (const OrderedGradient& gradient : gradients) {
    update_parameter(gradient);
    ++num_steps_[gradient.parameter];
  }
  if (copy_) {
    if (peers_ && !host_parts_) exchange_hosts();
    wait_for_host();
  } else if (group_) {
    exchange_parts();
  }
  // The kernels write behind autograd's back, so this counts their writes: autograd then refuses a
  // backward pass that needs the old values.
  for (const OrderedGradient& gradient : gradients)
    torch::autograd::impl::bump_version(parameters_[gradient.parameter]);
  remember_parameters(gradients);
} catch (const DamagedState& error) {
  if (group_) group_->abort(error.what());  // the others would wait for this rank's part
  throw;
}

// Calls `visit` with slices of a parameter's elements, with the gradient as float32. Those of
// 16-bit tensors are small enough to stay in the cache between the conversions.
template <class Visit>
Optimizer::Sums Optimizer::for_slices(const OrderedGradient& gradient, std::int64_t begin,
                                      std::int64_t end, bool writes, const Visit& visit) const {
  const std::size_t i = gradient.parameter;
  const Row& row = row_of(i);
  const bool with_master = has_master(i);
  const auto type = to_dtype(row.type);
  const auto gradient_type = to_dtype(gradient.tensor.scalar_type());
  const bool widens = gradient_type != Dtype::kFloat32;
  const std::int64_t offset = state_offset(i);
  Sums sums{};
  std::array<float, kBlock> widened;
  const std::int64_t longest = with_master || widens ? kBlock : end - begin;
  for (std::int64_t at = begin; at < end; at += longest) {
    const std::int64_t count = std::min(longest, end - at);
    const auto state_at = [&](std::size_t name) {
      return row.state[name].data_ptr<float>() + offset + at;
    };
    std::array<float*, kMaxStates> state{};
    for (std::size_t name = 0; name < state_names_.size(); ++name) state[name] = state_at(name);
    std::byte* const parameter =
        parameter_to_write(i) + static_cast<std::size_t>(at) * parameters_[i].itemsize();
    const std::byte* const given = element(gradient.tensor, at - gradient.first);
    if (widens) widen(gradient_type, given, widened.data(), count);
    float* const values =
        with_master ? state_at(state_names_.size()) : reinterpret_cast<float*>(parameter);
    const MasterSums read = with_master ? follow(type, parameter, values, count) : MasterSums();
    Sums own{};
    visit(Slice{values, widens ? widened.data() : reinterpret_cast<const float*>(given),
                state.data(), own.data(), count, num_steps_[i] + 1, group_of_[i]});
    if (with_master) {
      const MasterSums written =
          writes ? narrow(type, values, parameter, count)
                 : MasterSums{sum_words(Dtype::kFloat32, values, count), read.parameter};
      own[kValues] = {read.master, written.master, true};
      own[kRounded] = {read.parameter, written.parameter, true};
    }
    merge(sums, own);
  }
  return sums;
}

Optimizer::NormPair Optimizer::measure(const Slice&) const { return {}; }

// Of this rank's elements; then of all.
void Optimizer::measure_norms(const std::vector<OrderedGradient>& gradients) {
  for (const OrderedGradient& gradient : gradients) {
    const std::size_t i = gradient.parameter;
    const auto [first, last] = own_elements(i);
    if (first >= last) continue;
    const auto& pieces = pieces_[i];
    const auto own_first = std::ranges::lower_bound(pieces, first, {}, &Piece::begin);
    const auto own_last = std::ranges::lower_bound(pieces, last, {}, &Piece::begin);
    std::mutex mutex;  // guards `sums`
    Sums sums{};
    at::parallel_for(own_first - pieces.begin(), own_last - pieces.begin(), kGrain / kBlock,
                     [&](std::int64_t begin, std::int64_t end) {
                       Sums own{};
                       for (std::int64_t at = begin; at < end; ++at) {
                         const Piece& piece = pieces[static_cast<std::size_t>(at)];
                         auto* const place = norm_sums_.data_ptr<double>() + 2 * piece.slot;
                         const auto more = for_slices(gradient, piece.begin, piece.end, false,
                                                      [&](const Slice& slice) {
                                                        const NormPair pair = measure(slice);
                                                        std::ranges::copy(pair, place);
                                                      });
                         merge(own, more);
                       }
                       const std::lock_guard lock(mutex);
                       merge(sums, own);
                     });
    check_sums(i, sums);
  }
  if (group_) exchange_norms();
  if (!divided_.empty()) add_up_divided_norms();
}

// A parameter without a gradient here has none on the other ranks either; its norms are not read.
void Optimizer::add_up_divided_norms() {
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < divided_.size(); ++i) {
    const NormPair own = sums_of_norms(divided_[i]);
    std::ranges::copy(own, divided_norms_.begin() + static_cast<std::ptrdiff_t>(2 * i));
  }
  parts_.layers->all_reduce(std::span(divided_norms_), ReduceOp::kSum);
  exposed_seconds_ += seconds_since(begin);
}

void Optimizer::exchange_norms() {
  const auto begin = std::chrono::steady_clock::now();
  const auto slots = static_cast<std::int64_t>(slots_a_part_);
  const at::Tensor own = norm_sums_.narrow(0, group_->rank() * slots, slots);
  group_->all_gather(dense_cpu_view(own), dense_cpu_view(norm_sums_));
  exposed_seconds_ += seconds_since(begin);
}

// Of what this rank, or its group, has of the parameter.
Optimizer::NormPair Optimizer::sums_of_norms(std::size_t parameter) const {
  NormPair sums{};
  const auto* const all = norm_sums_.data_ptr<double>();
  for (const Piece& piece : pieces_[parameter]) {
    sums[0] += all[2 * piece.slot];
    sums[1] += all[2 * piece.slot + 1];
  }
  return sums;
}

Optimizer::NormPair Optimizer::norms_of(std::size_t parameter) const {
  if (norms_ == Norms::kNone) return {};
  const auto divided = std::ranges::lower_bound(divided_, parameter);
  NormPair sums{};
  if (divided != divided_.end() && *divided == parameter) {
    const auto place = 2 * (divided - divided_.begin());
    std::copy_n(divided_norms_.begin() + place, 2, sums.begin());
  } else {
    sums = sums_of_norms(parameter);
  }
  return {std::sqrt(sums[0]), std::sqrt(sums[1])};
}

void Optimizer::update_parameter(const OrderedGradient& gradient) {
  const std::size_t i = gradient.parameter;
  const auto [first, last] = own_elements(i);
  if (first >= last) return;
  const NormPair norms = norms_of(i);
  std::mutex mutex;  // guards `sums`
  Sums sums{};
  at::parallel_for(first, last, kGrain, [&](std::int64_t begin, std::int64_t end) {
    const Sums own =
        for_slices(gradient, begin, end, true, [&](const Slice& slice) { update(slice, norms); });
    const std::lock_guard lock(mutex);
    merge(sums, own);
  });
  check_sums(i, sums);
}

void Optimizer::merge(Sums& sums, const Sums& more) {
  for (std::size_t place = 0; place < sums.size(); ++place) {
    if (more[place].any) sums[place].add(more[place].read, more[place].written);
  }
}

void Optimizer::exchange_parts() {
  const auto begin = std::chrono::steady_clock::now();
  for (const Row& row : rows_) {
    const at::Tensor own = row.flat.narrow(0, own_begin(row), row.layout.part_count());
    group_->all_gather(dense_cpu_view(own), dense_cpu_view(row.flat));
  }
  exposed_seconds_ += seconds_since(begin);
}

// Each rank of a host brings what its peers on the other hosts have updated.
void Optimizer::exchange_hosts() {
  const auto begin = std::chrono::steady_clock::now();
  for (const Row& row : rows_) {
    const std::int64_t count = row.layout.part_count();
    const at::Tensor parts = at::empty({peers_->world_size() * count}, row.type);
    peers_->all_gather(dense_cpu_view(row.flat.narrow(0, own_begin(row), count)),
                       dense_cpu_view(parts));
    for (std::size_t host = 0; host < peer_ranks_.size(); ++host) {
      const int rank = peer_ranks_[host];
      if (rank == group_->rank()) continue;
      row.flat.narrow(0, rank * count, count)
          .copy_(parts.narrow(0, static_cast<std::int64_t>(host) * count, count));
    }
  }
  exposed_seconds_ += seconds_since(begin);
}

void Optimizer::wait_for_host() {
  const auto begin = std::chrono::steady_clock::now();
  host_->barrier();
  exposed_seconds_ += seconds_since(begin);
}

}  // namespace paceline::optim
