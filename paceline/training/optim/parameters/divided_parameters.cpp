#include "paceline/training/optim/parameters/divided_parameters.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/timing.h"

namespace paceline::optim {

namespace {

using torch::autograd::AutogradMeta;

class DividedGradient : public AutogradMeta {
 public:
  DividedGradient(c10::TensorImpl* parameter, AutogradMeta& before, std::size_t number,
                  std::weak_ptr<const DropGradient> divider)
      : AutogradMeta(parameter, before.requires_grad_),
        number_(number),
        divider_(std::move(divider)) {
    name_ = std::move(before.name_);
    grad_ = std::move(before.grad_);
    grad_accumulator_ = before.grad_accumulator_;
    hooks_ = std::move(before.hooks_);
    cpp_hooks_list_ = std::move(before.cpp_hooks_list_);
    take_later_hooks<AutogradMeta>(*this, before);
  }

  const at::Tensor& grad() const override {
    if (!grad_.defined() && requires_grad_ && is_divided()) {
      fail(ErrorCode::kInvalid,
           "the gradient of this parameter is divided among the ranks (fully_shard): between "
           "backward passes .grad has nothing to read. Call paceline::optim::clip_grad_norm, "
           "clip_grad_value or grad_norm with the optimizer instead of LibTorch's functions with "
           "parameters, and step() of the optimizer that was given to fully_shard()");
    }
    return grad_;
  }
  at::Tensor& mutable_grad() override {
    const bool is_in_backward = torch::autograd::get_current_graph_task_exec_info() != nullptr;
    const auto drop = is_in_backward ? nullptr : divider_.lock();
    if (drop) (*drop)(number_);
    return grad_;
  }
  bool is_divided() const { return !divider_.expired(); }

 private:
  // LibTorch 2.1 and later have these hooks.
  template <class Meta>
  static void take_later_hooks(Meta& to, Meta& from) {
    if constexpr (requires { from.post_acc_grad_hooks_; })
      to.post_acc_grad_hooks_ = std::move(from.post_acc_grad_hooks_);
  }

  const std::size_t number_;
  const std::weak_ptr<const DropGradient> divider_;
};

}  // namespace

void guard_divided_gradient(const at::Tensor& parameter, std::size_t number,
                            std::weak_ptr<const DropGradient> divider) {
  auto* const before = torch::autograd::impl::materialize_autograd_meta(parameter);
  auto* const impl = parameter.unsafeGetTensorImpl();
  impl->set_autograd_meta(
      std::make_unique<DividedGradient>(impl, *before, number, std::move(divider)));
}

bool is_gradient_divided(const at::Tensor& parameter) {
  const auto* const meta =
      dynamic_cast<const DividedGradient*>(torch::autograd::impl::get_autograd_meta(parameter));
  return meta != nullptr && meta->is_divided();
}

namespace {

// At most this many units stay whole, unless one operation reads more or a result of whole() lives:
// two for an operation that reads parameters of two units, and two so that the last units of the
// forward pass are still whole when the backward pass begins with them.
constexpr std::size_t kUnits = 4;

constexpr std::size_t kHeader = sizeof(std::size_t);  // a message begins with its unit's number

}  // namespace

DividedParameters::DividedParameters(std::shared_ptr<const OneCopy> copy,
                                     std::shared_ptr<ProcessGroup> host,
                                     std::shared_ptr<ProcessGroup> peers, std::vector<int> parts,
                                     std::vector<Unit> units)
    : copy_(std::move(copy)),
      host_(std::move(host)),
      peers_(std::move(peers)),
      parts_(std::move(parts)),
      units_(std::move(units)) {
  std::size_t largest = 0;
  for (const Unit& unit : units_) largest = std::max(largest, kHeader + unit.part_bytes);
  leaving_.resize(largest);
  arriving_.resize(largest * parts_.size());
  std::vector<std::vector<c10::Storage>> storages;
  for (const Unit& unit : units_) storages.push_back(unit.storages);
  watch_operations(*this, storages);
  for (std::size_t i = 0; i < units_.size(); ++i) copy_->close(units_[i].offset, bytes_of(i));
}

DividedParameters::~DividedParameters() {
  stop_watching(*this);
  try {
    if (under_way_) under_way_->work->wait();
  } catch (const Error&) {  // other calls of the group throw the same error
  }
}

std::byte* DividedParameters::part(std::size_t unit, int number) const {
  return copy_->data() + units_[unit].offset +
         units_[unit].part_bytes * static_cast<std::size_t>(number);
}

std::size_t DividedParameters::bytes_of(std::size_t unit) const {
  const auto ranks = host_->world_size() * peers_->world_size();
  return units_[unit].part_bytes * static_cast<std::size_t>(ranks);
}

bool DividedParameters::is_whole(std::size_t unit) const {
  return std::ranges::find(whole_, unit) != whole_.end();
}

void DividedParameters::before_read(std::span<const std::size_t> units) {
  if (std::ranges::all_of(units, [this](std::size_t unit) { return is_whole(unit); })) return;
  const auto begin = std::chrono::steady_clock::now();
  try {
    require_whole();
    for (const std::size_t unit : units) {
      if (!is_whole(unit)) bring(unit);
    }
    drop_oldest(units);
    start_next();
  } catch (...) {  // LibTorch would swallow the error
    if (!error_) {
      error_ = std::current_exception();
      const std::string why = describe_current_exception();
      peers_->abort(why);  // the other ranks wait for this one
      host_->abort(why);
    }
    for (const std::size_t unit : units) copy_->open(units_[unit].offset, bytes_of(unit));
  }
  exposed_seconds_ += seconds_since(begin);
}

// A message consists of the number of the unit and this rank's part of it.
void DividedParameters::start(std::size_t unit) {
  const std::size_t bytes = units_[unit].part_bytes;
  const int own = parts_[static_cast<std::size_t>(peers_->rank())];
  std::memcpy(leaving_.data(), &unit, kHeader);
  std::memcpy(leaving_.data() + kHeader, part(unit, own), bytes);
  const std::size_t message = kHeader + bytes;
  under_way_ = Fetch{
      unit,
      peers_->all_gather(Buffer(arriving_.data(), message * parts_.size(), Dtype::kUint8),
                         ConstBuffer(leaving_.data(), message, Dtype::kUint8), {.async_op = true})};
}

// Units may have equal sizes, so the collective itself would not detect a difference.
void DividedParameters::require_same(std::size_t unit, std::size_t other, const char* who) const {
  if (unit == other) return;
  fail(
      ErrorCode::kInvalid,
      "rank {}: an operation reads {} while one on {} reads {}; where hosts divide the parameters, "
      "all ranks use them in the same order: run the same operations on every rank",
      peers_->world_ranks()[static_cast<std::size_t>(peers_->rank())], units_[unit].name, who,
      other < units_.size() ? units_[other].name : "another model's");
}

// This rank writes its peers' parts into the copy; the unit is whole once every rank of the host
// has done so.
void DividedParameters::bring(std::size_t unit) {
  if (under_way_ && under_way_->unit != unit) std::exchange(under_way_, {})->work->wait();
  if (!under_way_) start(unit);
  std::exchange(under_way_, {})->work->wait();
  const std::size_t bytes = units_[unit].part_bytes;
  for (std::size_t peer = 0; peer < parts_.size(); ++peer) {
    if (static_cast<int>(peer) == peers_->rank()) continue;
    const std::byte* const message = arriving_.data() + peer * (kHeader + bytes);
    std::size_t other = 0;
    std::memcpy(&other, message, kHeader);
    require_same(unit, other, "another host");
    std::memcpy(part(unit, parts_[peer]), message + kHeader, bytes);
  }
  std::array<std::int64_t, 2> most{static_cast<std::int64_t>(unit),
                                   -static_cast<std::int64_t>(unit)};
  host_->all_reduce(std::span(most), ReduceOp::kMax);
  require_same(unit, static_cast<std::size_t>(most[0]), "this host");
  require_same(unit, static_cast<std::size_t>(-most[1]), "this host");
  copy_->open(units_[unit].offset, bytes_of(unit));
  whole_.push_back(unit);
  order_.push_back(unit);
}

// Releases only the pages that this rank has filled: the other ranks of the host release theirs,
// and may already be filling them again.
void DividedParameters::drop(std::size_t unit) {
  copy_->close(units_[unit].offset, bytes_of(unit));
  for (std::size_t peer = 0; peer < parts_.size(); ++peer) {
    if (static_cast<int>(peer) == peers_->rank()) continue;
    copy_->drop(static_cast<std::size_t>(part(unit, parts_[peer]) - copy_->data()),
                units_[unit].part_bytes);
  }
}

// Called after bring(): no rank of this host is running an operation, so none is reading a unit.
void DividedParameters::drop_oldest(std::span<const std::size_t> needed) {
  if (num_holders_ > 0) return;
  for (auto oldest = whole_.begin(); whole_.size() > kUnits && oldest != whole_.end();) {
    if (std::ranges::find(needed, *oldest) != needed.end()) {
      ++oldest;
      continue;
    }
    drop(*oldest);
    oldest = whole_.erase(oldest);
  }
}

// Prefetches the unit that followed the latest unit in the previous step.
void DividedParameters::start_next() {
  const std::size_t at = order_.size();
  if (at >= expected_.size() || expected_[at - 1] != order_.back()) return;
  if (!is_whole(expected_[at])) start(expected_[at]);
}

std::shared_ptr<void> DividedParameters::whole() {
  require_whole();
  ++num_holders_;  // set first, so that no unit is dropped while others arrive
  std::shared_ptr<void> hold(this, [self = shared_from_this()](void*) { self->let_go(); });
  std::vector<std::size_t> all(units_.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const double exposed_before = exposed_seconds_;  // no operation has waited for these units
  before_read(all);
  exposed_seconds_ = exposed_before;
  require_whole();
  return hold;
}

// Waits for the other ranks of this host, which may still be reading.
void DividedParameters::let_go() {
  if (--num_holders_ > 0) return;
  try {
    host_->barrier();
    forget();
  } catch (const Error&) {
    if (!error_) error_ = std::current_exception();
  }
}

void DividedParameters::forget() {
  if (under_way_) std::exchange(under_way_, {})->work->wait();
  for (const std::size_t unit : whole_) drop(unit);
  whole_.clear();
  expected_ = std::exchange(order_, {});
}

void DividedParameters::require_whole() const {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace paceline::optim
