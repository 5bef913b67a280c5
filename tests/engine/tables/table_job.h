#pragma once

// A table in the memory of the test's process and of processes that it forks.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "paceline/engine/tables/host/row_update.h"
#include "paceline/engine/tables/host/shared_rows.h"
#include "paceline/engine/tables/host/table_workers.h"

#include "tests/harness/expect_error.h"

namespace paceline::tables::testing_job {

using namespace std::chrono_literals;
using testing::HasSubstr;

// A table of `width` floats whose rows begin at 0, and to whose rows a push adds its gradients.
inline RowOptions adding_rows(std::uint32_t width) {
  return {.width = width, .optimizer = SGD{.lr = -1}, .capacity = 10'000, .initial_range = 0};
}

// The memories of one table by epoch, shared with forked children.
class Memories {
 public:
  explicit Memories(const RowOptions& options)
      : first_(TableMemory::make(Settings::of("t", options), 1)) {}

  MemoryPointer first() const { return first_; }
  // The same memory, mapped again as another process would.
  MemoryPointer mapped() const { return TableMemory::of_file(Fd(dup(first_->descriptor()))); }

 private:
  MemoryPointer first_;
};

inline std::unique_ptr<SharedRows> open(MemoryPointer memory, const std::string& worker,
                                        SharedRowsOptions options = {}) {
  options.table = "t";
  options.worker = worker;
  return std::make_unique<SharedRows>(std::move(memory), options);
}

inline std::vector<float> pull(Rows& rows, const std::vector<Id>& ids) {
  std::vector<float> values(ids.size() * rows.width());
  rows.pull(ids, values);
  return values;
}

// Whether a worker of this name has the table open.
inline bool is_present_there(const TableMemory& memory, const std::string& worker) {
  for (std::uint32_t i = 0; i < kMaxWorkers; ++i)
    if (is_present(memory.worker(i)) && worker == memory.worker(i).name.data()) return true;
  return false;
}

// Memory that a process and its children share, zero at first.
template <class T>
T& shared_with_children() {
  void* const place =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) throw std::bad_alloc();
  return *new (place) T;
}

}  // namespace paceline::tables::testing_job
