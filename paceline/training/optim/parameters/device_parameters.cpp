#include "paceline/training/optim/parameters/device_parameters.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/training/device/device_memory.h"
#include "paceline/training/tensor/tensor_call.h"

namespace paceline::optim {

bool ReadOrder::note(std::span<const std::size_t> units) {
  if (std::ranges::equal(units, last_)) return false;
  last_.assign(units.begin(), units.end());
  for (const std::size_t unit : units) {
    if (order_.size() < kLongest) order_.push_back(unit);
    // The order may repeat before the next step, for instance in an evaluation.
    if (!find(unit, at_)) find(unit, 0);
  }
  return true;
}

bool ReadOrder::find(std::size_t unit, std::size_t from) {
  const auto begin = expected_.begin() + static_cast<std::ptrdiff_t>(from);
  const auto length = std::min(kWindow, expected_.size() - from);
  const auto end = begin + static_cast<std::ptrdiff_t>(length);
  const auto found = std::find(begin, end, unit);
  if (found == end) return false;
  at_ = static_cast<std::size_t>(found - expected_.begin()) + 1;
  return true;
}

std::span<const std::size_t> ReadOrder::next() const {
  return std::span(expected_).subspan(at_).first(std::min(kAhead, expected_.size() - at_));
}

void ReadOrder::begin_step() {
  expected_ = std::exchange(order_, {});
  last_.clear();
  at_ = 0;
}

RangePool::RangePool(std::size_t bytes) : size_(rounded(bytes)) {
  if (size_ > 0) holes_[0] = size_;
}

std::optional<std::size_t> RangePool::take(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const auto fits = [size](const auto& hole) { return hole.second >= size; };
  const bool is_small = size * 4 <= size_;
  auto found = holes_.end();
  if (is_small) {
    const auto last = std::find_if(holes_.rbegin(), holes_.rend(), fits);
    if (last != holes_.rend()) found = std::prev(last.base());
  } else {
    found = std::find_if(holes_.begin(), holes_.end(), fits);
  }
  if (found == holes_.end()) return std::nullopt;
  const auto [begin, length] = *found;
  holes_.erase(found);
  const std::size_t offset = is_small ? begin + length - size : begin;
  if (length > size) holes_[is_small ? begin : begin + size] = length - size;
  taken_[offset] = size;
  return offset;
}

void RangePool::give_back(std::size_t offset) {
  const auto taken = taken_.find(offset);
  auto hole = holes_.emplace(offset, taken->second).first;
  taken_.erase(taken);
  const auto next = std::next(hole);
  if (next != holes_.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    holes_.erase(next);
  }
  if (hole == holes_.begin()) return;
  const auto before = std::prev(hole);
  if (before->first + before->second != hole->first) return;
  before->second += hole->second;
  holes_.erase(hole);
}

namespace {

constexpr const char* kMemoryCure =
    "use more ranks, smaller units (FullyShardOptions::unit_bytes, units), a smaller batch or "
    "activation_checkpoint()";

bool has(std::span<const std::size_t> units, std::size_t unit) {
  return std::ranges::find(units, unit) != units.end();
}

}  // namespace

at::Tensor zeros_for_gathers(ProcessGroup& group, c10::Device device, std::size_t bytes,
                             const std::string& what) {
  const c10::StreamGuard guard(side_stream(device, SideStream::kGather));
  return zeros_on_device(group, static_cast<std::int64_t>(bytes), at::kByte, device, what,
                         kMemoryCure);
}

void set_address(const at::Tensor& tensor, void* address) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({address, tensor.device()});
}

DeviceParameters::DeviceParameters(std::shared_ptr<ProcessGroup> group, std::vector<Unit> units,
                                   at::Tensor block)
    : group_(std::move(group)),
      units_(std::move(units)),
      device_(block.device()),
      stream_(side_stream(device_, SideStream::kGather)),
      pool_(block.nbytes()),
      block_(std::move(block)),
      gathered_(units_.size()) {
  std::vector<std::vector<c10::Storage>> storages;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    auto& of_unit = storages.emplace_back();
    for (const at::Tensor& parameter : units_[i].parameters) of_unit.push_back(parameter.storage());
  }
  watch_operations(*this, storages);
}

DeviceParameters::~DeviceParameters() {
  stop_watching(*this);
  try {
    while (!used_.empty()) release(used_.back());
  } catch (const Error&) {  // other calls of the group throw the same error
  }
  for (std::size_t i = 0; i < units_.size(); ++i) set_memory(i, {});
}

std::size_t DeviceParameters::bytes_of(std::size_t unit) const {
  return units_[unit].own.nbytes() * static_cast<std::size_t>(group_->world_size());
}

void DeviceParameters::before_read(std::span<const std::size_t> units) {
  try {
    require_whole();
    release_extra(units);
    for (const std::size_t unit : units) bring(unit, units);
    // Within whole() a single rank may read parameters, and the ranks must predict the same units.
    if (num_holders_ == 0 && order_.note(units)) prefetch(units);
  } catch (...) {  // LibTorch would swallow the error
    note_error();
    for (const std::size_t unit : units) {
      // The operation reads valid memory, with undefined values.
      set_memory(unit, gathered_[unit] ? gathered_[unit]->memory : block_);
    }
  }
}

void DeviceParameters::note_error() {
  if (error_) return;
  error_ = std::current_exception();
  group_->abort(describe_current_exception());  // the other ranks wait for this one
}

// Makes a unit whole for the current stream. `needed`: the units of the same operation.
void DeviceParameters::bring(std::size_t unit, std::span<const std::size_t> needed) {
  if (!gathered_[unit] && !make_room(unit, needed))
    gather(unit,
           zeros_for_gathers(*group_, device_, bytes_of(unit), "the unit of " + units_[unit].name));
  Gathered& own = *gathered_[unit];
  if (own.work) arrive(unit);
  if (own.readers.note()) own.arrived.block(current_stream_of(device_));
  used_.erase(std::ranges::find(used_, unit));
  used_.push_back(unit);
}

// Releases the units outside of the pool that an earlier operation needed.
void DeviceParameters::release_extra(std::span<const std::size_t> needed) {
  if (num_holders_ > 0) return;
  for (const std::size_t unit : std::vector(used_)) {
    if (!gathered_[unit]->place && !has(needed, unit)) release(unit);
  }
}

// Starts to gather the unit in the pool, after releasing units that are not in `kept`, the least
// recently used first. Returns false if there is no room.
bool DeviceParameters::make_room(std::size_t unit, std::span<const std::size_t> kept) {
  auto place = pool_.take(bytes_of(unit));
  while (!place && num_holders_ == 0) {
    const auto oldest =
        std::ranges::find_if(used_, [&](std::size_t other) { return !has(kept, other); });
    if (oldest == used_.end()) return false;
    release(*oldest);
    place = pool_.take(bytes_of(unit));
  }
  if (!place) return false;
  const auto begin = static_cast<std::int64_t>(*place);
  gather(unit, block_.narrow(0, begin, static_cast<std::int64_t>(bytes_of(unit))));
  gathered_[unit]->place = place;
  return true;
}

void DeviceParameters::gather(std::size_t unit, const at::Tensor& memory) {
  if (std::exchange(parts_changed_, false)) StreamEvent::after_current(device_).block(stream_);
  const at::Tensor& own = units_[unit].own;
  gathered_[unit].emplace(
      Gathered{memory.view(own.scalar_type()), {}, nullptr, {}, StreamJoin(device_), {}});
  used_.push_back(unit);
  const c10::StreamGuard guard(stream_);
  gathered_[unit]->work = start(*group_, {.op = Op::kAllGather,
                                          .input = own,
                                          .output = gathered_[unit]->memory,
                                          .subject = units_[unit].name});
}

void DeviceParameters::arrive(std::size_t unit) {
  Gathered& own = *gathered_[unit];
  {
    const c10::StreamGuard guard(stream_);
    std::exchange(own.work, nullptr)->wait();
    own.arrived = StreamEvent::after(stream_);
  }
  set_memory(unit, own.memory);
  own.writes = count_writes(unit);
}

// Gathers the units that will probably be read next, as far as there is room for them in addition
// to the units that are read earlier.
void DeviceParameters::prefetch(std::span<const std::size_t> needed) {
  std::vector<std::size_t> kept(needed.begin(), needed.end());
  for (const std::size_t unit : order_.next()) {
    if (!has(kept, unit)) kept.push_back(unit);
    if (!gathered_[unit] && !make_room(unit, kept)) return;
  }
}

// The stream of gathers waits for the operations that read the unit before it reuses the memory.
void DeviceParameters::release(std::size_t unit) {
  Gathered own = std::move(*gathered_[unit]);
  gathered_[unit].reset();
  std::erase(used_, unit);
  set_memory(unit, {});
  if (own.place) pool_.give_back(*own.place);
  const c10::StreamGuard guard(stream_);
  own.readers.join();
  if (own.work) own.work->wait();
  if (own.writes.empty() || own.writes == count_writes(unit)) return;
  try {
    fail(ErrorCode::kInvalid,
         "{}: the program has written to the unit of {} outside of a step: the ranks hold parts of "
         "the parameters, which still have the old values; hold optimizer.writable_parameters() on "
         "all ranks while you write",
         group_->self(), units_[unit].name);
  } catch (...) {
    note_error();
  }
}

void DeviceParameters::set_memory(std::size_t unit, const at::Tensor& memory) const {
  auto* const begin = memory.defined() ? static_cast<std::byte*>(memory.data_ptr()) : nullptr;
  const auto& [own, parameters, offsets, name] = units_[unit];
  for (std::size_t i = 0; i < parameters.size(); ++i)
    set_address(parameters[i], begin == nullptr ? nullptr : begin + offsets[i]);
}

std::vector<std::uint32_t> DeviceParameters::count_writes(std::size_t unit) const {
  std::vector<std::uint32_t> counts;
  for (const at::Tensor& parameter : units_[unit].parameters)
    counts.push_back(static_cast<std::uint32_t>(parameter._version()));
  return counts;
}

std::shared_ptr<void> DeviceParameters::whole() {
  require_whole();
  ++num_holders_;  // set first, so that no unit is released while others arrive
  std::shared_ptr<void> hold(this, [self = shared_from_this()](void*) { self->let_go(); });
  std::vector<std::size_t> all(units_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  before_read(all);
  require_whole();
  return hold;
}

void DeviceParameters::let_go() {
  if (--num_holders_ > 0) return;
  try {
    while (!used_.empty()) release(used_.back());
  } catch (const Error&) {
    note_error();
  }
}

void DeviceParameters::keep_writes() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (!gathered_[i] || gathered_[i]->work) continue;
    const at::Tensor& own = units_[i].own;
    gathered_[i]->readers.note();
    gathered_[i]->readers.join();
    own.copy_(gathered_[i]->memory.narrow(0, group_->rank() * own.numel(), own.numel()));
    gathered_[i]->writes = count_writes(i);
  }
  parts_changed_ = true;
}

void DeviceParameters::forget() {
  while (!used_.empty()) release(used_.back());
  // The current stream waits until the gathers have read the parts.
  StreamEvent::after(stream_).block(current_stream_of(device_));
  parts_changed_ = true;
  order_.begin_step();
  require_whole();
}

void DeviceParameters::require_whole() const {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace paceline::optim
