#pragma once

// The flight recorder, which keeps the last operations of this rank, and the words that it and its
// readers share.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "paceline/engine/core/dtype.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/system/host.h"
#include "paceline/engine/telemetry/timeline.h"

namespace paceline {

enum class FlightState : std::uint8_t {
  kEntered = 1,  // called; behind other operations in the group's queue
  kStarted = 2,
  kDone = 3,
  kFailed = 4,
};

// How a rank stopped recording.
enum class FlightEnd : std::uint32_t {
  kOpen = 0,       // it has not: it runs, or its process ended without a word
  kInOrder = 1,    // its groups are gone and nothing failed
  kFailed = 2,     // its groups are gone, and something had failed
  kException = 3,  // an exception destroyed its groups before any operation had failed
};

// A call. `op` and `reduce_op` are the numbers of paceline/engine/collectives.
struct FlightCall {
  std::uint8_t op = 0;
  std::uint8_t reduce_op = 0;
  Dtype dtype = Dtype::kUint8;
  bool asynchronous = false;
  std::uint32_t group = 0;  // as FlightRecorder::add_group() gave it
  std::int32_t peer = 0;    // root, or the other side of a message
  std::uint32_t tag = 0;
  std::uint64_t count = 0;
  std::uint64_t group_hash = 0;
};

// "rank-003.flight".
std::string flight_file_name(int rank);

// The last thousand operations of this rank, in a ring that is a mapped file: the kernel keeps what
// was written whatever ends the process, kill -9 included. flight_file.h reads it;
// `paceline explain` says in one sentence what it means.
//
// The file is DIRECTORY/rank-RRR.flight, 98 KiB. It is gone after a clean end and stays after a
// failure: it is removed when the recorder goes and nothing has failed, unless `keep` leaves that
// to the program that started the job (a rank that left in order is worth knowing about when
// another one waits for it).
//
// Cost: about 25 ns a record (engine/core/timing.h); an operation has two, its begin and its
// end, an asynchronous one three. No allocation, no lock, no system call; a record whose place
// another thread is writing at the same moment is dropped and counted.
//
// Thread safety: every method may be called from any thread. A child after fork() must not use it.
// Owners are the groups of one rank.

namespace flight {
struct File;
struct Operation;
}  // namespace flight

struct FlightOptions {
  std::string directory;  // made if it is missing, for this user alone
  int rank = 0;
  int world_size = 1;
  int generation = 0;
  std::string job;    // by which the ranks of a job know each other's files; 39 bytes of it
  bool keep = false;  // the file stays after a clean end as well
  std::shared_ptr<Timeline> timeline;  // also has every operation that ended; may be null
};

// An operation that is being recorded; 0: one that is not.
struct FlightTicket {
  std::uint64_t id = 0;
};

class FlightRecorder {
 public:
  // Replaces the file of an earlier group of this rank. Error(kSystem) names the path.
  explicit FlightRecorder(const FlightOptions& options);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  const std::string& directory() const { return options_.directory; }
  const std::string& path() const { return path_; }

  // Takes a lock; returns the number by which operations name the group.
  std::uint32_t add_group(std::string_view name, std::uint64_t hash, int rank, int world_size,
                          int generation);

  // An asynchronous operation was called and waits for its turn; start() and finish() follow.
  FlightTicket enter(const FlightCall& call) noexcept;
  void start(FlightTicket ticket, std::uint32_t sequence) noexcept;
  // An operation was called and begins at once; finish() follows.
  FlightTicket start(const FlightCall& call, std::uint32_t sequence) noexcept;
  void finish(FlightTicket ticket, std::optional<ErrorCode> error) noexcept;

  // The failure of this rank: the first text is kept, 1,024 bytes of it.
  void note_failure(std::string_view text) noexcept;

 private:
  FlightTicket begin(const FlightCall& call, FlightState state, std::uint32_t sequence) noexcept;
  flight::Operation* claim(FlightTicket ticket) noexcept;
  flight::Operation& place_of(std::uint64_t id) const noexcept;
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
