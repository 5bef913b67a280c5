#pragma once

// To which run the checkpoints of a directory belong, in DIR/.run, so that no job takes an older
// one's state for its own. docs/checkpoint_format.md has the text.
//
// Thread safety: pure functions but for the file.

#include <cstdint>
#include <optional>
#include <string>

#include "paceline/files/checkpoint/file_system.h"

namespace paceline {

struct RunMark {
  std::string run;  // chosen at random when it began; kept by the jobs that continue it
  // The launcher's name for the job whose restarts go on with it unasked; nothing: no job's do.
  std::optional<std::string> job;
  // Of its sampler and its transforms; shown beside the run where two are confused.
  std::optional<std::uint64_t> seed;

  bool operator==(const RunMark&) const = default;
};

// Nothing when there is none. One that makes no sense counts as none, and is logged.
std::optional<RunMark> read_run_mark(const std::string& directory,
                                     FileSystem& files = FileSystem::real());

// Replaces it in one step, by a file that is first written in `workspace` (writer_claim.h); on the
// disk when it returns. Error(kSystem) when it cannot; the one before it stays.
void write_run_mark(const std::string& directory, const std::string& workspace, const RunMark& mark,
                    FileSystem& files = FileSystem::real());

}  // namespace paceline
