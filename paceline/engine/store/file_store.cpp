#include "paceline/engine/store/file_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/authentication.h"
#include "paceline/engine/core/awake_clock.h"
#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/core/system/io.h"
#include "paceline/engine/core/system/safe_files.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/store.h"

namespace paceline {

namespace {

using namespace std::chrono_literals;

constexpr std::array<char, 8> kMagic = {'P', 'L', 'S', 'T', 'O', 'R', 'E', 1};
constexpr off_t kWorkByte = 0;
constexpr off_t kPresenceByte = 1;

struct Header {
  std::array<char, 8> magic;
  std::uint64_t end;  // where the valid changes end
  std::array<std::byte, 16> run;
  std::int64_t pid;
  std::int64_t created;  // seconds since 1970
  std::array<char, 40> boot;
  std::array<char, 64> host;
};
static_assert(sizeof(Header) == 152);

// Tries to lock one byte of the file; returns 0 or the error number.
int try_lock(const Fd& file, short type, off_t byte) {
  struct flock region {};
  region.l_type = type;
  region.l_whence = SEEK_SET;
  region.l_start = byte;
  region.l_len = 1;
  return ::fcntl(file.get(), F_OFD_SETLK, &region) == 0 ? 0 : errno;
}

}  // namespace

FileStoreLog::FileStoreLog(std::string path, Deadline deadline) : path_(std::move(path)) {
  open(deadline);
  refuse_foreign();
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw system_error("fstat " + path_);
  if (status.st_size == 0) {
    create_header();
  } else {
    refuse_stale();
  }
  const int error = try_lock(file_, F_RDLCK, kPresenceByte);
  if (error != 0) throw system_error("locking " + path_, error);
  position_ = sizeof(Header);
  unlock();
}

// Leaves the file open and locked. If the last process that used the file removes it between the
// opening and the locking, this function starts again.
void FileStoreLog::open(Deadline deadline) {
  for (;;) {
    file_ = open_to_write(path_, O_RDWR | O_CREAT, 0600);
    if (!file_) {
      fail(ErrorCode::kSystem, "the store's file {} cannot be opened: {}", path_,
           describe_refusal(path_, errno));
    }
    try {
      lock(deadline);
      return;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kPeerLost || deadline.expired()) throw;
    }
  }
}

FileStoreLog::~FileStoreLog() {
  if (!owner_.is_this()) return;
  try {
    lock(Deadline::after(2s));
    // Our read lock can become a write lock exactly when no other process uses the file.
    if (try_lock(file_, F_WRLCK, kPresenceByte) == 0) ::unlink(path_.c_str());
    try_lock(file_, F_UNLCK, kPresenceByte);
  } catch (const std::exception&) {
    // Another process removed the file or keeps it locked, so we only close it.
  }
}

void FileStoreLog::lock(Deadline deadline) {
  Vigil vigil;
  for (auto pause = 50us;; pause = std::min(pause * 2, std::chrono::microseconds(5000))) {
    const int error = try_lock(file_, F_WRLCK, kWorkByte);
    if (error == 0) break;
    if (error != EAGAIN && error != EACCES && error != EINTR) {
      throw system_error("locking the store's file " + path_, error);
    }
    if (vigil.sees_passed(deadline)) {
      fail(ErrorCode::kTimeout, "another process keeps the store's file {} locked", path_);
    }
    std::this_thread::sleep_for(pause);  // the kernel has no lock with a deadline
  }
  if (!still_linked()) {
    unlock();
    fail(ErrorCode::kPeerLost, "the store's file {} was removed while in use", path_);
  }
}

void FileStoreLog::unlock() noexcept { try_lock(file_, F_UNLCK, kWorkByte); }

bool FileStoreLog::still_linked() const {
  struct stat status {};
  return ::fstat(file_.get(), &status) == 0 && status.st_nlink > 0;
}

void FileStoreLog::create_header() {
  Header header{};
  header.magic = kMagic;
  header.end = sizeof(Header);
  fill_random(header.run);
  header.pid = ::getpid();
  header.created = std::time(nullptr);
  put_text(header.boot, boot_id());
  put_text(header.host, host_name());
  write(0, &header, sizeof header);
}

void FileStoreLog::refuse_foreign() const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw system_error("fstat " + path_);
  check(S_ISREG(status.st_mode), "the store's path {} is not a regular file", path_);
  check(status.st_uid == ::geteuid(),
        "the store's file {} belongs to user {}, this process runs as user {}", path_,
        status.st_uid, ::geteuid());
  check(status.st_size == 0 || status.st_size >= static_cast<off_t>(sizeof(Header)),
        "{} is not a store of Paceline; name a file that does not exist yet", path_);
}

void FileStoreLog::refuse_stale() const {
  Header header;
  read(0, &header, sizeof header);
  check(header.magic == kMagic,
        "{} is not a store of Paceline (of this version); name a file that does not exist yet",
        path_);
  if (try_lock(file_, F_WRLCK, kPresenceByte) != 0) return;  // the file is in use
  const bool rebooted = printable(header.boot) != boot_id();
  fail(ErrorCode::kInvalid,
       "the store's file {} is left over from an earlier run: process {} on host {} made it at "
       "{}{} and no process uses it any more. Remove it (rm {}) or name another file",
       path_, header.pid, printable(header.host),
       fmt::format("{:%F %T}", fmt::localtime(static_cast<std::time_t>(header.created))),
       rebooted ? ", on another host or before a reboot," : "", path_);
}

void FileStoreLog::replay(KeyValues& contents) {
  std::uint64_t end = 0;
  read(offsetof(Header, end), &end, sizeof end);
  if (end < position_ || end > kMaxBytes) {
    fail(ErrorCode::kCorrupt,
         "the store's file {} is damaged: its header gives its end as byte {}, with {} bytes read "
         "so far",
         path_, end, position_);
  }
  std::vector<std::byte> bytes(end - position_);
  read(position_, bytes.data(), bytes.size());
  ByteReader reader(bytes);
  while (reader.remaining() > 0) {
    const std::uint64_t offset = end - reader.remaining();
    try {
      const auto change = reader.get<FileStoreChange>();
      const auto key = reader.get_string(Store::kMaxKeyBytes);
      const auto value = reader.get_string(Store::kMaxValueBytes);
      if (change == FileStoreChange::kSet) contents.set(key, value);
      if (change == FileStoreChange::kAppend) contents.append(key, value);
      if (change == FileStoreChange::kErase) contents.erase(key);
    } catch (const Error& error) {
      fail(ErrorCode::kCorrupt, "the store's file {} is damaged at byte {}: {}", path_, offset,
           error.what());
    }
  }
  position_ = end;
}

void FileStoreLog::append(FileStoreChange change, const std::string& key,
                          const std::string& value) {
  ByteWriter writer;
  writer.put(change);
  writer.put_string(key);
  writer.put_string(value);
  const auto& bytes = writer.bytes();
  const std::uint64_t end = position_ + bytes.size();
  check(end <= kMaxBytes, "the store's file {} is full: it may have {} bytes", path_, kMaxBytes);
  write(position_, bytes.data(), bytes.size());
  write(offsetof(Header, end), &end, sizeof end);
  position_ = end;
}

void FileStoreLog::rewind() { position_ = sizeof(Header); }

void FileStoreLog::read(std::uint64_t offset, void* bytes, std::size_t count) const {
  const auto into = std::span(static_cast<std::byte*>(bytes), count);
  const ssize_t got = read_whole_at(file_.get(), static_cast<off_t>(offset), into);
  if (got < 0) throw system_error("reading the store's file " + path_);
  if (got == static_cast<ssize_t>(count)) return;
  fail(ErrorCode::kCorrupt, "the store's file {} ends early, at byte {}", path_,
       offset + static_cast<std::uint64_t>(got));
}

void FileStoreLog::write(std::uint64_t offset, const void* bytes, std::size_t count) {
  const auto from = std::span(static_cast<const std::byte*>(bytes), count);
  if (write_whole_at(file_.get(), static_cast<off_t>(offset), from)) return;
  throw system_error("writing the store's file " + path_);
}

namespace {

using namespace std::chrono_literals;

// Wakes the waiting call when the file changes. A change on another host is noticed up to 50 ms
// later; if no inotify instance is left, every change is noticed up to 5 ms later.
class FileWatch {
 public:
  explicit FileWatch(const std::string& path) : events_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    if (events_) ::inotify_add_watch(events_.get(), path.c_str(), IN_MODIFY);
  }

  void wait(Deadline deadline) const {
    const auto interval = events_ ? 50ms : 5ms;
    pollfd entry{events_.get(), POLLIN, 0};
    poll_for({&entry, events_ ? 1U : 0U},
             std::chrono::milliseconds(deadline.poll_timeout_ms(interval)));
    char drained[4096];
    while (read_some(events_.get(), std::as_writable_bytes(std::span(drained))) > 0) {
    }
  }

 private:
  Fd events_;
};

// Keeps the file locked during an operation. After a failed operation the contents in memory, which
// may be ahead of the file, are discarded; the next operation then reads the file from the start.
class LogLock {
 public:
  LogLock(FileStoreLog& log, KeyValues& contents, Deadline deadline)
      : log_(log), contents_(contents) {
    log_.lock(deadline);
  }
  LogLock(const LogLock&) = delete;
  LogLock& operator=(const LogLock&) = delete;
  ~LogLock() {
    if (!finished_) {
      log_.rewind();
      contents_ = KeyValues();
    }
    log_.unlock();
  }
  void finish() { finished_ = true; }

 private:
  FileStoreLog& log_;
  KeyValues& contents_;
  bool finished_ = false;
};

}  // namespace

FileStore::FileStore(std::string path, std::chrono::milliseconds timeout)
    : Store(timeout), log_(std::move(path), Deadline::after(timeout)) {}

template <class Body>
auto FileStore::locked(Body body) {
  const std::lock_guard thread_lock(mutex_);
  LogLock lock(log_, contents_, Deadline::after(timeout()));
  log_.replay(contents_);
  auto result = body();
  lock.finish();
  return result;
}

StoreReply FileStore::run(const StoreRequest& request) {
  check_keys(request.keys);
  if (request.waits()) return wait_for(request);
  return locked([&] {
    StoreReply reply = contents_.apply(request);
    write_to_log(request, reply);
    return reply;
  });
}

void FileStore::write_to_log(const StoreRequest& request, const StoreReply& reply) {
  for (std::size_t i = 0; i < request.keys.size(); ++i) {
    const std::string& key = request.keys[i];
    switch (request.command) {
      case StoreCommand::kSet:
        log_.append(FileStoreChange::kSet, key, request.values[i]);
        break;
      case StoreCommand::kAdd:
        log_.append(FileStoreChange::kSet, key, *contents_.find(key));
        break;
      case StoreCommand::kCompareSet:
        if (reply.values[0] == request.values[1] && contents_.contains(key)) {
          log_.append(FileStoreChange::kSet, key, request.values[1]);
        }
        break;
      case StoreCommand::kAppend:
        log_.append(FileStoreChange::kAppend, key, request.values[0]);
        break;
      case StoreCommand::kDelete:
        if (reply.number != 0) log_.append(FileStoreChange::kErase, key, "");
        break;
      default:
        break;
    }
  }
}

StoreReply FileStore::wait_for(const StoreRequest& request) {
  const std::chrono::milliseconds timeout(request.number);
  auto deadline = Deadline::after(timeout);
  const FileWatch watch(log_.path());  // made before the first read, so that no change is missed
  for (Vigil vigil;;) {
    StoreReply reply;
    const auto missing = locked([&] {
      auto absent = contents_.missing(request.keys);
      if (absent.empty()) reply = contents_.apply(request);
      return absent;
    });
    if (missing.empty()) return reply;
    if (vigil.sees_passed(deadline)) throw missing_keys_error(missing, timeout);
    watch.wait(deadline);
  }
}

}  // namespace paceline
