#pragma once

// A store in one file that all ranks can open, on a local disk or a network file system with fcntl
// locks. store/FORMAT.md describes the bytes.

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/store/memory_store.h"
#include "paceline/engine/store/store.h"
#include "paceline/engine/store/store_request.h"

namespace paceline {

enum class FileStoreChange : std::uint8_t { kSet = 1, kAppend = 2, kErase = 3 };

// The file of a FileStore: a header that names the process that made it, then all changes in order.
//
// A process locks byte 0 for writing while it works on the file (OFD locks of fcntl), and byte 1
// for reading as long as it uses the file. The kernel releases both locks when the process dies. So
// a file with contents that no process uses was left by an earlier run. The valid changes end at
// the header's `end`. A writer that was killed may have left bytes after `end`; the next change
// overwrites them.
//
// Thread safety: none; FileStore serialises the calls.
class FileStoreLog {
 public:
  static constexpr std::uint64_t kMaxBytes = 1ULL << 30;

  // Opens the file or creates it (0600). Throws Error(kSystem) when that fails, kTimeout when
  // another process keeps the file locked, and kInvalid when the file is not a store, belongs to
  // another user, or was left by an earlier run, whose process, host and time the message names.
  FileStoreLog(std::string path, Deadline deadline);
  FileStoreLog(const FileStoreLog&) = delete;
  FileStoreLog& operator=(const FileStoreLog&) = delete;
  // Removes the file when no other process uses it. In a child of fork(), which shares the locks
  // with its parent, only closes the file.
  ~FileStoreLog();

  // Throws Error(kTimeout) when another process keeps the file locked, and kPeerLost when the file
  // was removed.
  void lock(Deadline deadline);
  void unlock() noexcept;

  // Applies the changes that were written since the last call. Throws Error(kCorrupt), naming the
  // file and the offset, when the file is damaged. Requires: the file is locked.
  void replay(KeyValues& contents);
  // Appends a change. Throws Error(kSystem) when the disk is full, and Error(kInvalid) beyond
  // kMaxBytes; the change is then lost. Requires: the file is locked and replayed.
  void append(FileStoreChange change, const std::string& key, const std::string& value);
  // Makes the next replay() apply all changes again; its `contents` must be empty.
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

  const OwnerProcess owner_;
  std::string path_;
  Fd file_;
  std::uint64_t position_ = 0;  // where the next change to replay begins
};

// A store in a file. Every change is appended under a lock, and the last process that uses the file
// removes it. The store suits a rendezvous, not frequent calls: each call takes the lock, and a
// waiting call reads the file again at every change and at least every 50 ms.
//
// Thread safety: as Store. The threads of one process take turns: while one thread waits for a lock
// that another process holds, all others wait as well.
class FileStore final : public Store {
 public:
  // The file at `path` must be missing, empty, or in use by other ranks of this run. Any other
  // regular file gives Error(kInvalid); if an earlier run left the file, the message names that
  // run's process, host and time.
  explicit FileStore(std::string path, std::chrono::milliseconds timeout = kDefaultTimeout);

  StoreReply run(const StoreRequest& request) override;

 private:
  // Runs `body` on the current contents, with the mutex and the file locked.
  template <class Body>
  auto locked(Body body);
  StoreReply wait_for(const StoreRequest& request);
  void write_to_log(const StoreRequest& request, const StoreReply& reply);

  std::mutex mutex_;  // guards log_ and contents_
  FileStoreLog log_;
  KeyValues contents_;
};

}  // namespace paceline
