#include "paceline/transport/mapping.h"

#include <sys/mman.h>

#include "paceline/core/check.h"

namespace paceline {
namespace {

// Null, with errno set, when it fails. MAP_POPULATE touches the pages once, here, instead of in the
// first collective.
std::byte* map(int fd, int flags, std::size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, 0);
  return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
}

}  // namespace

Mapping Mapping::anonymous(std::size_t bytes) {
  std::byte* data = map(-1, MAP_SHARED | MAP_ANONYMOUS, bytes);
  if (data == nullptr) throw system_error(fmt::format("mapping {} bytes of memory", bytes));
  return {data, bytes};
}

Mapping Mapping::of_file(const Fd& file, std::size_t bytes) {
  return {map(file.get(), MAP_SHARED, bytes), bytes};
}

Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

}  // namespace paceline
