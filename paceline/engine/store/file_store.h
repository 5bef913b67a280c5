#pragma once

// A store in one file that all ranks can open, on a local disk or a network file system with fcntl
// locks. docs/formats/store.md lays out the bytes.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/store.h"

namespace paceline {

enum class FileStoreChange : std::uint8_t { kSet = 1, kAppend = 2, kErase = 3 };

// The file under a FileStore: a header that says whose run it is, then every change in order.
//
// A process that works on the file locks byte 0 for writing (OFD locks of fcntl); every process
// that uses it has byte 1 locked for reading. The kernel takes both back when a process dies. A
// file with contents but without users was therefore left by a run that is over. The header's `end`
// says how much of the log counts; what a killed writer left behind it is overwritten.
//
// Thread safety: none; FileStore serialises.
class FileStoreLog {
 public:
  static constexpr std::uint64_t kMaxBytes = 1ULL << 30;

  // Opens or creates (0600). Error(kInvalid) when the file is not a store, belongs to another user
  // or is left over from an earlier run: its process, host and time are named.
  FileStoreLog(std::string path, Deadline deadline);
  FileStoreLog(const FileStoreLog&) = delete;
  FileStoreLog& operator=(const FileStoreLog&) = delete;
  // Removes the file when no other user is left.
  ~FileStoreLog();

  // Error(kTimeout) when another process keeps the file locked, kPeerLost when it was removed.
  void lock(Deadline deadline);
  void unlock() noexcept;

  // Applies what was written since the last call. Requires: locked. Error(kCorrupt) names file and
  // offset.
  void replay(KeyValues& contents);
  // Requires: locked and replayed. Error(kSystem) when the disk is full; then nothing was appended.
  void append(FileStoreChange change, const std::string& key, const std::string& value);
  // The next replay starts over, on empty contents.
  void rewind();

  const std::string& path() const { return path_; }

 private:
  void open(Deadline deadline);
  bool still_linked() const;
  void create_header();
  void refuse_foreign() const;
  void refuse_stale() const;
  void read(std::uint64_t offset, void* bytes, std::size_t count) const;
  void write(std::uint64_t offset, const void* bytes, std::size_t count);

  std::string path_;
  Fd file_;
  std::uint64_t position_ = 0;  // of the next change to replay
};

// Every change is appended under a lock; the file goes when its last user leaves. It is fit for a
// meeting, not for traffic: each call takes the lock, and a waiting one looks again whenever the
// file changes (at least every 50 ms).
//
// Thread safety: as Store. Threads of one process take turns, also while one of them waits for
// another process's lock.
class FileStore final : public Store {
 public:
  // `path` does not exist, is empty, or is in use by this run's other ranks. Error(kInvalid) for
  // anything else: a file that an earlier run left behind is refused with that run's process, host
  // and time.
  explicit FileStore(std::string path, std::chrono::milliseconds timeout = kDefaultStoreTimeout);

  StoreReply run(const StoreRequest& request) override;

 private:
  // Runs `body` on the current contents, with thread and file locked.
  template <class Body>
  auto locked(Body body);
  StoreReply wait_for(const StoreRequest& request);
  void write_to_log(const StoreRequest& request, const StoreReply& reply);

  std::mutex mutex_;  // guards log_ and contents_
  FileStoreLog log_;
  KeyValues contents_;
};

}  // namespace paceline
