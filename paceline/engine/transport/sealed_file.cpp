#include "paceline/engine/transport/sealed_file.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace paceline {
namespace {

// shmem answers a file beyond RLIMIT_FSIZE with a signal that ends the process.
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

}  // namespace paceline
