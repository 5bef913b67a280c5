#include "paceline/engine/store/file_store.h"

#include <utility>

#include <poll.h>
#include <sys/inotify.h>

#include "paceline/engine/core/io.h"
#include "paceline/engine/core/vigil.h"
#include "paceline/engine/store/store_errors.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// Wakes when the file changes. Changes made on another host, or with inotify's instances used up,
// are seen at the next look.
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

// Unlocks the file, and after a failed operation makes the next one read it from the start: memory
// may be ahead of it.
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
  const FileWatch watch(log_.path());  // before the first look, so that no change falls between
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
