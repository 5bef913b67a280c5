#include "paceline/launcher/output/folder_claim.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/io.h"
#include "paceline/engine/core/no_links.h"

namespace paceline::launcher {
namespace {

constexpr std::chrono::seconds kOthersClaim{1};
constexpr std::size_t kLongestName = 512;

bool write_holder(int file, const std::string& job) {
  return ftruncate(file, 0) == 0 && write_whole_at(file, 0, as_bytes(job));
}

std::string read_holder(int file) {
  char text[kLongestName];
  const ssize_t length = read_whole_at(file, 0, std::as_writable_bytes(std::span(text)));
  return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : "another job";
}

bool is_removed(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && status.st_nlink == 0;
}

}  // namespace

FolderClaim claim_folder(const std::string& folder, const std::string& job) {
  const std::string path = folder + "/" + kClaimFile;
  const Deadline deadline = Deadline::after(kOthersClaim);
  Fd file;
  for (;;) {
    if (!file || is_removed(file.get())) {
      file = open_to_write(path, O_RDWR | O_CREAT);
      if (!file) return {.problem = describe_refusal(errno)};
    }
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_removed(file.get())) continue;
      if (!write_holder(file.get(), job)) return {.lock = std::move(file)};  // a full disk
    } else if (errno != EWOULDBLOCK) {
      return {.lock = std::move(file)};
    }
    // From the lock of one to that of many there is a moment without any: another job may have
    // come, whose name then stands there, or have removed it.
    const bool shared = flock(file.get(), LOCK_SH | LOCK_NB) == 0;
    if ((shared && !is_removed(file.get())) || deadline.expired()) break;
    poll(nullptr, 0, 1);
  }
  std::string holder = read_holder(file.get());
  if (holder == job) return {.lock = std::move(file)};
  return {.holder = std::move(holder)};
}

void release_folder(const std::string& folder, Fd lock) {
  if (!lock || flock(lock.get(), LOCK_EX | LOCK_NB) != 0 || is_removed(lock.get())) return;
  unlink((folder + "/" + kClaimFile).c_str());
}

}  // namespace paceline::launcher
