#include "paceline/transport/mapping.h"

#include <sys/mman.h>

#include "paceline/core/check.h"

namespace paceline {
namespace {

// Null, with errno set, when it fails. MAP_POPULATE touches the pages once, here, instead of in the
// first collective.
std::byte* map(int fd, int flags, std::size_t bytes, Pages pages) {
  flags |= pages == Pages::kPresent ? MAP_POPULATE : MAP_NORESERVE;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) return nullptr;
  if (pages == Pages::kOnTouch) madvise(address, bytes, MADV_DONTFORK);
  return static_cast<std::byte*>(address);
}

}  // namespace

Mapping Mapping::anonymous(std::size_t bytes, Pages pages) {
  std::byte* data = map(-1, MAP_SHARED | MAP_ANONYMOUS, bytes, pages);
  if (data == nullptr) throw system_error(fmt::format("mapping {} bytes of memory", bytes));
  return {data, bytes};
}

Mapping Mapping::of_file(const Fd& file, std::size_t bytes, Pages pages) {
  return {map(file.get(), MAP_SHARED, bytes, pages), bytes};
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace paceline
