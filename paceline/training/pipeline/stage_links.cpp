#include "paceline/training/pipeline/stage_links.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/device/device_memory.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/shaped_messages.h"
#include "paceline/training/tensor/tensor_allocator.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {

namespace {

using Slot = std::atomic_ref<std::uint64_t>;

// The tag of the message that reports that no borrowed tensor is in use any more; no stage uses
// this tag.
constexpr std::uint32_t kAllReturned = ~std::uint32_t{0};

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

int in_world(const ProcessGroup& group, int rank) {
  return group.world_ranks()[static_cast<std::size_t>(rank)];
}

// Replaces the memory of `storage` by a copy, and thereby returns the borrowed tensor.
void become_a_copy(c10::StorageImpl& storage) {
  at::DataPtr copy = c10::GetCPUAllocator()->allocate(storage.nbytes());
  std::memcpy(copy.get(), std::as_const(storage).data(), storage.nbytes());
  storage.set_data_ptr_noswap(std::move(copy));
}

void keep_for_ever(std::map<std::int64_t, at::Tensor> tensors) {
  static std::mutex mutex;  // guards `kept`
  static auto* const kept = new std::vector<std::map<std::int64_t, at::Tensor>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(tensors));
}

}  // namespace

Loans::Loans(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), are_threads_(group_->transport() == "loopback") {
  if (!are_threads_ && group_->transport() != "shm") return;
  slots_ = group_->allocate_symmetric(kMaxOpenLoans * sizeof(std::uint64_t));
  for (std::int64_t slot = kMaxOpenLoans; slot-- > 0;) free_.push_back(slot);
}

Loans::~Loans() {
  collect();
  if (!lent_.empty()) keep_for_ever(std::move(lent_));
}

std::uint64_t* Loans::slot_of(int rank, std::int64_t slot) const {
  return reinterpret_cast<std::uint64_t*>(slots_.of(rank)) + slot;
}

// A slot holds 1 + the offset of the tensor in the lender's area (between threads: the tensor's
// address); 0 means that the tensor was returned.
std::optional<Loans::Loan> Loans::lend(const at::Tensor& tensor, int peer) {
  collect();
  if (free_.empty() || tensor.numel() == 0 || !tensor.storage().resizable()) return {};
  Loan loan{.slot = free_.back()};
  std::uintptr_t place = address_of(tensor.data_ptr());
  if (!are_threads_) {
    const auto arena = TensorAllocator::instance().arena();
    const bool sees_it = arena && arena->contains(tensor.data_ptr()) &&
                         arena->area_of(in_world(*group_, peer)) != nullptr;
    if (!sees_it) return {};
    place -= address_of(arena->area_of(in_world(*group_, group_->rank())));
    loan.arena = arena->number();
  }
  free_.pop_back();
  lent_.emplace(loan.slot, tensor);
  borrowers_.insert(peer);
  Slot(*slot_of(group_->rank(), loan.slot)).store(place + 1, std::memory_order_relaxed);
  return loan;
}

at::Tensor Loans::borrow(const Loan& loan, int peer, at::IntArrayRef sizes, at::ScalarType type) {
  collect();
  check(loan.slot >= 0 && loan.slot < kMaxOpenLoans && slots_.data() != nullptr,
        "{}: {} lends a tensor in slot {}, which does not exist", group_->self(),
        group_->name_of_member(static_cast<std::size_t>(peer)), loan.slot);
  std::uint64_t* const slot = slot_of(peer, loan.slot);
  std::uintptr_t place = Slot(*slot).load(std::memory_order_relaxed) - 1;
  const auto bytes =
      static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  std::shared_ptr<SymmetricArena> arena;  // must outlive the tensor
  if (!are_threads_) {
    arena = TensorAllocator::instance().arena();
    check(arena != nullptr && arena->number() == loan.arena && bytes <= arena->bytes() &&
              place <= arena->bytes() - bytes,
          "{}: {} lends a tensor in the memory of a SymmetricTensors that this rank does not have; "
          "make it on every rank, and destroy it at the same point of the program",
          group_->self(), group_->name_of_member(static_cast<std::size_t>(peer)));
    place += address_of(arena->area_of(in_world(*group_, peer)));
  }
  at::Tensor tensor = at::from_blob(
      reinterpret_cast<void*>(place), sizes,
      [slot, arena, owner = slots_.owner()](void*) {
        Slot(*slot).store(0, std::memory_order_release);
      },
      at::TensorOptions(type));
  borrowed_.push_back(tensor.storage().getWeakStorageImpl());
  lenders_.insert(peer);
  return tensor;
}

// Drops lent tensors that were returned.
void Loans::collect() {
  std::erase_if(lent_, [&](const auto& loan) {
    if (Slot(*slot_of(group_->rank(), loan.first)).load(std::memory_order_acquire) != 0)
      return false;
    free_.push_back(loan.first);
    return true;
  });
}

void Loans::settle() {
  for (const auto& weak : std::exchange(borrowed_, {})) {
    if (const auto storage = weak.lock()) become_a_copy(*storage);
  }
  const std::byte word{};
  for (const int lender : std::exchange(lenders_, {}))
    group_->send(std::span(&word, 1), lender, kAllReturned);
  for (const int borrower : std::exchange(borrowers_, {})) wait_for(borrower);
  collect();
}

void Loans::wait_for(int borrower) {
  std::byte word{};
  try {
    group_->recv(std::span(&word, 1), borrower, kAllReturned);
  } catch (const Error& error) {
    throw error.reworded(fmt::format(
        "{}; {} had given all its results and was waiting for {} to finish reading them in place",
        error.what(), group_->self(), group_->name_of_member(static_cast<std::size_t>(borrower))));
  }
}

namespace {

// How one tensor arrives: a row of the list that is sent first.
struct Row {
  enum How : std::int64_t { kUndefined, kAsMessage, kLent, kByDevice };
  std::int64_t how = kUndefined;
  Loans::Loan loan;
  std::int64_t dtype = 0, num_sizes = 0;
  std::array<std::int64_t, kMaxMessageSizes> sizes{};

  static Row of(How how, const at::Tensor& tensor) {
    Row row{.how = how,
            .dtype = static_cast<std::int64_t>(to_dtype(tensor.scalar_type())),
            .num_sizes = tensor.dim()};
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), row.sizes.begin());
    return row;
  }
  at::IntArrayRef shape() const {
    const auto count = std::clamp<std::int64_t>(num_sizes, 0, std::ssize(sizes));
    return {sizes.data(), static_cast<std::size_t>(count)};
  }
  at::ScalarType type() const { return to_scalar_type(static_cast<Dtype>(dtype)); }
};
constexpr std::int64_t kWords = sizeof(Row) / sizeof(std::int64_t);

// The tag of all lists and tensors in a group whose CUDA backend sends messages.
constexpr std::uint32_t kInOrder = kAllReturned - 1;

}  // namespace

StageLinks::StageLinks(std::shared_ptr<ProcessGroup> group, const PipelineSchedule& schedule,
                       c10::Device device)
    : group_(std::move(group)),
      schedule_(schedule),
      device_(device),
      loans_(group_),
      has_device_messages_(engine(*group_).takes_messages(Device::kCuda)) {}

// Without a CUDA backend, each micro-batch has its own tag for each boundary and direction, so that
// a rank need not receive micro-batches in the order in which they were sent.
std::uint32_t StageLinks::tag(const Key& key) const {
  if (has_device_messages_) return kInOrder;
  const auto [from, micro_batch, direction] = key;
  const auto way =
      2u * static_cast<std::uint32_t>(from) + (direction == Direction::kForward ? 0u : 1u);
  return way * static_cast<std::uint32_t>(schedule_.num_micro_batches) +
         static_cast<std::uint32_t>(micro_batch);
}

bool StageLinks::is_sent_by_device(const at::Tensor& tensor) const {
  return has_device_messages_ && tensor.is_cuda() && tensor.numel() > 0 &&
         tensor.dim() <= std::ssize(Row().sizes);
}

// Returns the tensors. Replaces those on the device that travel through host memory by copies on
// the host, and waits until the device has computed them.
StageLinks::Tensors StageLinks::on_host(const Tensors& tensors) const {
  if (device_.is_cpu()) return tensors;
  Tensors copies = tensors;
  DeviceSnapshot snapshot;
  for (at::Tensor& tensor : copies) {
    if (!tensor.defined() || tensor.is_cpu() || is_sent_by_device(tensor)) continue;
    tensor = snapshot.copy_of(tensor.contiguous());
  }
  snapshot.wait(Deadline::after(group_->timeout()),
                fmt::format("{}: a tensor for the next rank of a pipeline", group_->self()));
  return copies;
}

void StageLinks::send(int stage, int micro_batch, Direction direction, const Tensors& tensors) {
  if (direction == Direction::kForward) {
    const auto [known, is_new] = counts_.emplace(stage, tensors.size());
    check(known->second == tensors.size(),
          "{}: stage {} gives {} tensors; in its first micro-batch it gave {}", group_->self(),
          stage, tensors.size(), known->second);
  }
  const Key key(stage, micro_batch, direction);
  const int peer = rank_of(direction == Direction::kForward ? stage + 1 : stage - 1);
  if (peer == group_->rank()) {
    own_[key] = tensors;
    return;
  }
  drop_finished_sends();
  const at::Tensor list =
      at::zeros({1 + static_cast<std::int64_t>(tensors.size()), kWords}, at::kLong);
  auto* const words = static_cast<std::int64_t*>(list.data_ptr());
  words[0] = stage;
  words[1] = micro_batch;
  words[2] = static_cast<std::int64_t>(direction);
  auto* row = static_cast<Row*>(list.data_ptr());
  Tensors all{list}, by_device;
  for (const at::Tensor& given : on_host(tensors)) {
    Row& own = *++row;
    if (!given.defined()) continue;
    const at::Tensor tensor = given.contiguous();
    if (is_sent_by_device(tensor)) {
      own = Row::of(Row::kByDevice, tensor);
      by_device.push_back(tensor);
      continue;
    }
    const auto loan =
        tensor.dim() <= std::ssize(own.sizes) ? loans_.lend(tensor, peer) : std::nullopt;
    if (loan) {
      own = Row::of(Row::kLent, tensor);
      own.loan = *loan;
    } else {
      own.how = Row::kAsMessage;
      all.push_back(tensor);
    }
  }
  for (const at::Tensor& tensor : all)
    sends_.push_back(isend_with_shape(*group_, tensor, peer, tag(key)));
  for (const at::Tensor& tensor : by_device)
    sends_.push_back(isend(*group_, tensor, peer, tag(key)));
}

// Receives the next list with this tag, and its tensors.
std::pair<StageLinks::Key, StageLinks::Arrival> StageLinks::next_arrival(int peer,
                                                                         std::uint32_t tag) {
  const auto take = [&] { return recv_with_shape(*group_, peer, tag).tensor; };
  const at::Tensor list = take();
  check(list.scalar_type() == at::kLong && list.dim() == 2 && list.size(0) > 0 &&
            list.size(1) == kWords,
        "{}: {} has sent {} in a pipeline's step; use another group for other messages",
        group_->self(), group_->name_of_member(static_cast<std::size_t>(peer)), shapes_of({list}));
  const auto* const words = static_cast<const std::int64_t*>(list.data_ptr());
  const Key key(static_cast<int>(words[0]), static_cast<int>(words[1]),
                static_cast<Direction>(words[2]));
  Arrival arrival;
  for (const Row& row :
       std::span(static_cast<const Row*>(list.data_ptr()), static_cast<std::size_t>(list.size(0)))
           .subspan(1)) {
    at::Tensor& tensor = arrival.tensors.emplace_back();
    if (row.how == Row::kAsMessage) tensor = take();
    if (row.how == Row::kLent) tensor = loans_.borrow(row.loan, peer, row.shape(), row.type());
    if (row.how == Row::kByDevice) {
      const c10::Device device = with_index(device_.is_cuda() ? device_ : c10::Device(c10::kCUDA));
      tensor = at::empty(row.shape(), at::TensorOptions(row.type()).device(device));
      arrival.works.push_back(irecv(*group_, tensor, peer, tag));
    }
  }
  return {key, std::move(arrival)};
}

StageLinks::Arrival StageLinks::arrival_of(int peer, const Key& key) {
  if (auto kept = kept_.extract({peer, key}); !kept.empty()) return std::move(kept.mapped());
  for (;;) {
    auto [found, arrival] = next_arrival(peer, tag(key));
    if (found == key) return std::move(arrival);
    check(has_device_messages_ && kept_.emplace(std::pair(peer, found), std::move(arrival)).second,
          "{}: {} has sent the tensors of another stage or micro-batch of a pipeline",
          group_->self(), group_->name_of_member(static_cast<std::size_t>(peer)));
  }
}

StageLinks::Tensors StageLinks::receive(int stage, int micro_batch, Direction direction) {
  const int from = direction == Direction::kForward ? stage - 1 : stage + 1;
  const Key key(from, micro_batch, direction);
  const int peer = rank_of(from);
  if (peer == group_->rank()) return std::move(own_.extract(key).mapped());
  Arrival arrival = arrival_of(peer, key);
  for (const WorkPtr& work : arrival.works) work->wait();
  for (at::Tensor& tensor : arrival.tensors) {
    if (tensor.defined() && tensor.device() != device_) tensor = tensor.to(device_);
  }
  return std::move(arrival.tensors);
}

void StageLinks::drop_finished_sends() {
  std::erase_if(sends_, [](const WorkPtr& work) {
    if (!work->is_completed()) return false;
    work->wait();  // throws the error of the send, if any
    return true;
  });
}

void StageLinks::finish() {
  for (const WorkPtr& work : sends_) work->wait();
  sends_.clear();
  loans_.settle();
}

}  // namespace paceline
