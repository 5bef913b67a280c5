#pragma once

// Calls back before an operation of LibTorch reads watched parameters (at::RecordFunction), so that
// their units can be made whole just in time. Operations are watched, not modules, so forward and
// backward passes are treated alike.
//
// While units are watched, every operation of the process boxes its inputs for the watch.
//
// Thread safety: every function may be called from any thread.

#include <cstddef>
#include <span>
#include <vector>

#include <c10/core/Storage.h>

namespace paceline::optim {

class WatchedUnits {
 public:
  virtual ~WatchedUnits() = default;
  // Called when an operation is about to read parameters of these units, whose numbers ascend, on
  // the thread of the operation. It is not called for operations that another operation runs
  // internally on the same units, nor for those that before_read() itself runs. It must not throw,
  // because LibTorch would swallow the error.
  virtual void before_read(std::span<const std::size_t> units) = 0;
};

// Calls `owner` from now on. `storages`: for each unit, the storages of its parameters, which are
// kept alive. Requires: each storage has only one owner.
void watch_operations(WatchedUnits& owner, const std::vector<std::vector<c10::Storage>>& storages);
// Call it before `owner` is destroyed, while no operation reads its parameters.
void stop_watching(const WatchedUnits& owner);

}  // namespace paceline::optim
