#pragma once

// Saves into a CheckpointDirectory off the training thread: the snapshot is copied, the caller
// continues, and a thread of its own computes digests, writes and waits for the disk.
//
// At most one save is under way; one that comes earlier waits for it, and says so. So a checkpoint
// on the disk is never older than the last but one, and a kill at any moment leaves what the
// directory promises. Cost: memory for one copy of the snapshot, kept for the next one, and the
// time to copy it. The thread runs at a lower priority than the training whose core it shares.
//
// Thread safety: none; one thread at a time.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "paceline/checkpoint/checkpoint_directory.h"
#include "paceline/checkpoint/snapshot.h"
#include "paceline/core/error.h"
#include "paceline/telemetry/timeline.h"

namespace paceline {

class CheckpointWriter {
 public:
  // `timeline` gets a span for each write; may be null. Requires: no other writer saves into
  // `directory`, which outlives this.
  explicit CheckpointWriter(CheckpointDirectory& directory,
                            std::shared_ptr<Timeline> timeline = nullptr);
  // What is under way is written to its end.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // As CheckpointDirectory::save, but returns once `snapshot` has been copied. What goes wrong
  // later is logged at once and given by the next take_error() or finish().
  void save(std::int64_t step, const Snapshot& snapshot);

  // The same in two parts, for a snapshot that others have put together (shared_staging.h). First:
  // waits, as save() does, until what was saved before is on the disk.
  void take_turn(std::int64_t step);
  // Then: as save(), but copies nothing. Requires: the tensors' bytes stay as they are until the
  // next take_turn() or finish() has returned, or this object is gone.
  void save_in_place(std::int64_t step, Snapshot snapshot);

  // The first error since it was last asked; does not wait.
  std::optional<Error> take_error();
  // Waits until what was saved is on the disk, then as take_error().
  std::optional<Error> finish();

 private:
  // A copy of a snapshot; its memory is used again by the next one.
  class Staging {
   public:
    // Points into this memory.
    Snapshot copy(const Snapshot& snapshot);

   private:
    struct Free {
      void operator()(std::byte* bytes) const { std::free(bytes); }
    };
    void reserve(std::size_t bytes);

    std::unique_ptr<std::byte, Free> memory_;
    std::size_t capacity_ = 0;
  };

  void wait_until_idle(std::unique_lock<std::mutex>& lock);
  void work(std::int64_t step);
  std::optional<Error> write(std::int64_t step);

  CheckpointDirectory& directory_;
  const std::shared_ptr<Timeline> timeline_;  // owners: the groups of this rank, and this
  // The thread's while a save is under way, else the caller's.
  Staging staging_;
  Snapshot snapshot_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::optional<std::int64_t> step_;  // of the save under way
  std::optional<Error> error_;
  std::jthread thread_;  // of the last save
};

}  // namespace paceline
