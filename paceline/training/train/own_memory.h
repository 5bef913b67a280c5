#pragma once

// The memory of this process, as the kernel counts it (proc_pid_smaps(5), proc_pid_status(5)).
//
// Thread safety: pure functions.

#include <optional>

namespace paceline::train {

// Bytes. A page that N processes have counts as an Nth in a proportional set.
struct OwnMemory {
  double anonymous = 0;      // proportional
  double shared = 0;         // proportional: of files in memory, such as symmetric memory
  double files = 0;          // of files on a disk, such as libraries, each page whole
  double resident = 0;       // all pages, each whole
  double peak_resident = 0;  // the most since the process began

  double own() const { return anonymous + shared; }
};

// Nothing where the kernel does not tell all of it.
std::optional<OwnMemory> own_memory();

}  // namespace paceline::train
