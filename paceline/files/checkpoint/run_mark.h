#pragma once

// The mark of the run to which a directory's checkpoints belong.
//
// Thread safety: the functions may be called from any thread.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

// Names the run of a directory's checkpoints, in DIR/.run, so that no job mistakes the state of an
// older job for its own.
struct RunMark {
  std::string run;  // chosen at random when the run begins; the jobs that continue it keep it
  // The launcher's name for the job whose restarts continue the run automatically; nothing: no
  // job's restarts do.
  std::optional<std::string> job;
  // The seed of the run's sampler and transforms; messages that tell two runs apart show it.
  std::optional<std::uint64_t> seed;

  bool operator==(const RunMark&) const = default;
};

// Returns nullopt when there is no mark. An invalid mark is logged and counts as none.
std::optional<RunMark> read_run_mark(const std::string& directory,
                                     FileSystem& files = FileSystem::real());

// Replaces the mark in one step: writes a file in `workspace` (writer_claim.h), then renames it.
// The mark is on the disk when this returns. After an Error(kSystem) the previous mark is still
// there.
void write_run_mark(const std::string& directory, const std::string& workspace, const RunMark& mark,
                    FileSystem& files = FileSystem::real());

}  // namespace paceline
