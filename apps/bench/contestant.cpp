#include "apps/bench/contestant.h"

#include <sys/mman.h>

#include "paceline/engine/core/check.h"

namespace paceline::bench {

Memory ordinary_memory(std::size_t bytes) {
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw system_error(fmt::format("{} bytes of memory", bytes));
  return {static_cast<std::byte*>(data),
          std::shared_ptr<void>(data, [bytes](void* begin) { munmap(begin, bytes); })};
}

void Contestant::run_coalesced(const Collective& call, std::size_t) { run(call); }

Memory Contestant::allocate(MemoryKind, std::size_t bytes) { return ordinary_memory(bytes); }

}  // namespace paceline::bench
