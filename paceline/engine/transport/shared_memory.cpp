#include "paceline/engine/transport/shared_memory.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/io.h"

namespace paceline {

namespace {

// Callers check this first, because the kernel answers a file beyond RLIMIT_FSIZE with a signal
// that ends the process.
bool is_beyond_file_size_limit(std::size_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur;
}

}  // namespace

Fd make_sealed_file(std::size_t bytes) {
  Fd file(memfd_create("paceline", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return file;
  int status = 0;
  if (is_beyond_file_size_limit(bytes)) {
    status = EFBIG;
  } else if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
             fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    status = errno;
  }
  if (status != 0) {
    file.reset();
    errno = status;
  }
  return file;
}

bool is_sealed_file(const Fd& file, std::size_t bytes) {
  struct stat status {};
  const int seals = fcntl(file.get(), F_GET_SEALS);
  return fstat(file.get(), &status) == 0 && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 &&
         static_cast<std::size_t>(status.st_size) >= bytes;
}

namespace {

// Areas of at least this size ask for huge pages, which cause fewer TLB misses. The kernel provides
// them if the administrator allows them for shared memory (transparent_hugepage/shmem_enabled).
constexpr std::size_t kMinHugeBytes = 4 << 20;

// Allocates the pages now and not in the first collective. Returns false and sets errno if there is
// not enough memory.
bool bring_all(int fd, void* address, std::size_t bytes, const Pages& pages) {
  // Without a file, pages cannot be reserved, so all of them are allocated.
  const std::size_t mapped = fd < 0 ? bytes : pages.bytes_of(bytes);
  if (madvise(address, mapped, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  // Before Linux 5.14, the pages are allocated through the file, without huge pages.
  return fd < 0 || reserve_file(fd, mapped);
}

// Maps the memory; returns null and sets errno if that fails.
std::byte* map(int fd, int flags, std::size_t bytes, Pages pages) {
  if (pages == Pages::kOnTouch) flags |= MAP_NORESERVE;
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (address == MAP_FAILED) return nullptr;
  if (bytes >= kMinHugeBytes) madvise(address, bytes, MADV_HUGEPAGE);
  if (pages == Pages::kOnTouch) {
    madvise(address, bytes, MADV_DONTFORK);
  } else if (!bring_all(fd, address, bytes, pages)) {
    const int error = errno;
    munmap(address, bytes);
    errno = error;
    return nullptr;
  }
  return static_cast<std::byte*>(address);
}

}  // namespace

bool populate_pages(std::byte* begin, std::size_t bytes) {
  return madvise(begin, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}

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
