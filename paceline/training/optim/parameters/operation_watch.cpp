#include "paceline/training/optim/parameters/operation_watch.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/record_function.h>

namespace paceline::optim {

namespace {

struct Owner {
  WatchedUnits* units = nullptr;
  std::size_t unit = 0;
  c10::Storage storage;
};

struct Known {
  std::shared_mutex mutex;                                 // guards the other members
  std::unordered_map<const void*, Owner> owners;           // [a storage's implementation]
  at::CallbackHandle watch = at::INVALID_CALLBACK_HANDLE;  // handle of before_operation()
};

Known& known() {
  static auto* const of_process = new Known;  // operations may run until the process ends
  return *of_process;
}

// Whether the operation uses only a tensor's shape, or makes a view of its memory without reading
// the elements.
bool reads_nothing(std::string_view operation) {
  static constexpr std::array<std::string_view, 16> kNames = {
      "aten::alias",  "aten::as_strided", "aten::detach",    "aten::empty_like",
      "aten::expand", "aten::narrow",     "aten::permute",   "aten::result_type",
      "aten::select", "aten::slice",      "aten::t",         "aten::transpose",
      "aten::view",   "aten::view_as",    "aten::unsqueeze", "aten::zeros_like"};
  return std::ranges::find(kNames, operation) != kNames.end();
}

thread_local bool is_calling = false;

class Calling {
 public:
  Calling() { is_calling = true; }
  ~Calling() { is_calling = false; }
  Calling(const Calling&) = delete;
  Calling& operator=(const Calling&) = delete;
};

struct Needed {
  WatchedUnits* owner = nullptr;  // only one, because a model has one optimizer
  std::vector<std::size_t> units;
  bool any_owner = false;  // the process watches at least one owner's units
};

// Returns the units to which an operation's inputs belong.
Needed needed_by(c10::ArrayRef<const c10::IValue> inputs) {
  Needed needed;
  const std::shared_lock lock(known().mutex);
  needed.any_owner = !known().owners.empty();
  const auto look_at = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = known().owners.find(tensor.storage().unsafeGetStorageImpl());
    if (found == known().owners.end()) return;
    needed.owner = found->second.units;
    needed.units.push_back(found->second.unit);
  };
  for (const auto& input : inputs) {
    if (input.isTensor()) look_at(input.toTensor());
    if (!input.isTensorList()) continue;
    for (const at::Tensor& tensor : input.toTensorVector()) look_at(tensor);
  }
  std::ranges::sort(needed.units);
  const auto repeated = std::ranges::unique(needed.units);
  needed.units.erase(repeated.begin(), repeated.end());
  return needed;
}

// The last owner does not remove the callback, because at exit LibTorch's list of callbacks may be
// destroyed before that owner. Instead the callback removes itself, which LibTorch allows even
// while other threads run operations: the list has a mutex and a version, and each operation uses a
// copy of it.
void remove_unused_callback() {
  const std::unique_lock lock(known().mutex);
  if (!known().owners.empty() || known().watch == at::INVALID_CALLBACK_HANDLE) return;
  at::removeCallback(std::exchange(known().watch, at::INVALID_CALLBACK_HANDLE));
}

// An operation that reads parameters, while it runs.
struct Running : at::ObserverContext {
  Needed needs;
  Running* around = nullptr;  // the operation that calls this one
};
thread_local Running* running = nullptr;

std::unique_ptr<at::ObserverContext> before_operation(const at::RecordFunction& operation) {
  if (is_calling || reads_nothing(operation.name())) return nullptr;
  Needed needed = needed_by(operation.inputs());
  if (!needed.any_owner) remove_unused_callback();
  if (needed.owner == nullptr) return nullptr;
  // The outer operation may still use pointers to its own units after this inner one.
  if (running != nullptr && running->needs.owner == needed.owner) {
    std::vector<std::size_t> all;
    std::ranges::set_union(running->needs.units, needed.units, std::back_inserter(all));
    if (all == running->needs.units) return nullptr;
    needed.units = std::move(all);
  }
  {
    const Calling calling;
    needed.owner->before_read(needed.units);
  }
  auto now = std::make_unique<Running>();
  now->needs = std::move(needed);
  now->around = std::exchange(running, now.get());
  return now;
}

void after_operation(const at::RecordFunction& /*operation*/, at::ObserverContext* context) {
  if (context != nullptr) running = static_cast<Running*>(context)->around;
}

}  // namespace

void watch_operations(WatchedUnits& owner, const std::vector<std::vector<c10::Storage>>& storages) {
  const std::unique_lock lock(known().mutex);
  for (std::size_t unit = 0; unit < storages.size(); ++unit) {
    for (const c10::Storage& storage : storages[unit])
      known().owners[storage.unsafeGetStorageImpl()] = {&owner, unit, storage};
  }
  if (known().watch != at::INVALID_CALLBACK_HANDLE) return;
  known().watch =
      at::addGlobalCallback(at::RecordFunctionCallback(before_operation, after_operation)
                                .needsInputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
}

void stop_watching(const WatchedUnits& owner) {
  const std::unique_lock lock(known().mutex);
  std::erase_if(known().owners, [&](const auto& one) { return one.second.units == &owner; });
}

}  // namespace paceline::optim
