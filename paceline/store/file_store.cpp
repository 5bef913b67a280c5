#include "paceline/store/file_store.h"

#include <utility>

#include <poll.h>
#include <sys/inotify.h>

#include "paceline/core/io.h"
#include "paceline/core/vigil.h"
#include "paceline/store/store_errors.h"

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
    : timeout_(timeout), log_(std::move(path), Deadline::after(timeout)) {}

template <class Body>
auto FileStore::locked(Body body) {
  const std::lock_guard thread_lock(mutex_);
  LogLock lock(log_, contents_, Deadline::after(timeout()));
  log_.replay(contents_);
  auto result = body();
  lock.finish();
  return result;
}

void FileStore::set_locked(const std::string& key, const std::string& value) {
  contents_.set(key, value);
  log_.append(FileStoreChange::kSet, key, value);
}

void FileStore::set(const std::string& key, const std::string& value) { multi_set({key}, {value}); }

std::string FileStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return multi_get({key}, timeout).front();
}

std::int64_t FileStore::add(const std::string& key, std::int64_t amount) {
  return locked([&] {
    const auto sum = contents_.add(key, amount);
    log_.append(FileStoreChange::kSet, key, *contents_.find(key));
    return sum;
  });
}

std::string FileStore::compare_set(const std::string& key, const std::string& expected,
                                   const std::string& desired) {
  return locked([&] {
    auto value = contents_.compare_set(key, expected, desired);
    if (value == desired && contents_.contains(key)) {
      log_.append(FileStoreChange::kSet, key, desired);
    }
    return value;
  });
}

void FileStore::append(const std::string& key, const std::string& value) {
  locked([&] {
    contents_.append(key, value);
    log_.append(FileStoreChange::kAppend, key, value);
    return true;
  });
}

bool FileStore::delete_key(const std::string& key) {
  return locked([&] {
    const bool erased = contents_.erase(key);
    if (erased) log_.append(FileStoreChange::kErase, key, "");
    return erased;
  });
}

bool FileStore::check(const std::vector<std::string>& keys) {
  check_keys(keys);
  return locked([&] { return contents_.missing(keys).empty(); });
}

std::int64_t FileStore::num_keys() {
  return locked([&] { return static_cast<std::int64_t>(contents_.size()); });
}

void FileStore::wait(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  multi_get(keys, timeout);
}

std::vector<std::string> FileStore::multi_get(const std::vector<std::string>& keys,
                                              std::chrono::milliseconds timeout) {
  check_keys(keys);
  auto deadline = Deadline::after(timeout);
  const FileWatch watch(log_.path());  // before the first look, so that no change falls between
  for (Vigil vigil;;) {
    std::vector<std::string> values;
    const auto missing = locked([&] {
      auto absent = contents_.missing(keys);
      if (absent.empty()) {
        for (const auto& key : keys) values.push_back(*contents_.find(key));
      }
      return absent;
    });
    if (missing.empty()) return values;
    if (vigil.sees_passed(deadline)) throw missing_keys_error(missing, timeout);
    watch.wait(deadline);
  }
}

void FileStore::multi_set(const std::vector<std::string>& keys,
                          const std::vector<std::string>& values) {
  check_pairs(keys, values);
  locked([&] {
    for (std::size_t i = 0; i < keys.size(); ++i) set_locked(keys[i], values[i]);
    return true;
  });
}

}  // namespace paceline
