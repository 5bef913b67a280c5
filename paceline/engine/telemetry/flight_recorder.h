#pragma once

// The flight recorder, which keeps the last operations of this rank, and the types that it shares
// with its readers.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/telemetry/timeline.h"

namespace paceline {

enum class FlightState : std::uint8_t {
  kEntered = 1,  // called; waits in the group's queue
  kStarted = 2,
  kDone = 3,
  kFailed = 4,
};

// How a rank stopped recording.
enum class FlightEnd : std::uint32_t {
  kOpen = 0,       // not yet: the rank runs, or its process ended abruptly
  kInOrder = 1,    // its groups were destroyed, and nothing had failed
  kFailed = 2,     // its groups were destroyed after a failure
  kException = 3,  // an exception destroyed its groups before any operation had failed
};

// One call of an operation. `op` and `reduce_op` are numbers of paceline/engine/collectives.
struct FlightCall {
  std::uint8_t op = 0;
  std::uint8_t reduce_op = 0;
  Dtype dtype = Dtype::kUint8;
  bool asynchronous = false;
  std::uint32_t group = 0;  // a number from FlightRecorder::add_group()
  std::int32_t peer = 0;    // root, or the other rank of a message
  std::uint32_t tag = 0;
  std::uint64_t count = 0;
  std::uint64_t group_hash = 0;
};

// "rank-003.flight".
std::string flight_file_name(int rank);

// Keeps the last thousand operations of this rank in a ring in a mapped file. The kernel keeps the
// records however the process ends, even after kill -9. flight_file.h reads the file; `paceline
// explain` sums it up in one sentence.
//
// The file is DIRECTORY/rank-RRR.flight, 98 KiB. The destructor of the recorder removes it after a
// clean end (kInOrder); otherwise the file stays. With `keep` it always stays, and the program that
// started the job removes it: the file of a rank that ended cleanly matters when another rank waits
// for that rank.
//
// Cost: about 25 ns per record (engine/core/timing.h). A synchronous operation takes two records,
// its beginning and its end, an asynchronous one three. There is no allocation, no lock and no
// system call. A record is dropped and counted if another thread is writing to the same slot of the
// ring at that moment, or a later operation has taken the slot.
//
// Thread safety: every method may be called from any thread. A forked child must not use the
// recorder. The groups of one rank share ownership of it.

namespace flight {
struct File;
struct Operation;
}  // namespace flight

struct FlightOptions {
  std::string directory;  // created if it is missing, for this user alone
  int rank = 0;
  int world_size = 1;
  int generation = 0;
  std::string job;                     // identifies the files of one job; 39 bytes are kept
  bool keep = false;                   // keeps the file after a clean end as well
  std::shared_ptr<Timeline> timeline;  // also records every operation that ends; may be null
};

// The id of an operation that is being recorded; 0 if the operation is not recorded.
struct FlightTicket {
  std::uint64_t id = 0;
};

class FlightRecorder {
 public:
  // Replaces the file of an earlier recorder of this rank. Throws Error(kSystem), which names the
  // path.
  explicit FlightRecorder(const FlightOptions& options);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  const std::string& directory() const { return options_.directory; }
  const std::string& path() const { return path_; }

  // Returns the number with which operations refer to the group. Takes a lock.
  std::uint32_t add_group(std::string_view name, std::uint64_t hash, int rank, int world_size,
                          int generation);

  // Records that an asynchronous operation was called and waits in the group's queue; start() and
  // finish() follow.
  FlightTicket enter(const FlightCall& call) noexcept;
  void start(FlightTicket ticket, std::uint32_t sequence) noexcept;
  // Records that an operation was called and begins at once; finish() follows.
  FlightTicket start(const FlightCall& call, std::uint32_t sequence) noexcept;
  void finish(FlightTicket ticket, std::optional<ErrorCode> error) noexcept;

  // Records the failure of this rank. Only the first text is kept, up to 1,024 bytes.
  void note_failure(std::string_view text) noexcept;

 private:
  FlightTicket begin(const FlightCall& call, FlightState state, std::uint32_t sequence) noexcept;
  flight::Operation* claim(FlightTicket ticket) noexcept;
  flight::Operation& slot_of(std::uint64_t id) const noexcept;
  void drop() noexcept;
  void describe_process();
  bool is_own_file() const;

  const FlightOptions options_;
  const std::string path_;
  const OwnerProcess owner_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  flight::File* file_ = nullptr;
  std::mutex mutex_;  // guards num_groups_, the table of groups and the text of the failure
  std::uint32_t num_groups_ = 0;
};

}  // namespace paceline
