#pragma once

// What the user is told, once, of output that is lost: logs that could not be written, and what the
// ranks printed that could not be shown.
//
// Thread safety: none.

#include "paceline/job/generation.h"
#include "paceline/output/consoles.h"
#include "paceline/output/log_directory.h"

namespace paceline::launch {

class OutputWarnings {
 public:
  // The references must outlive it.
  OutputWarnings(Consoles& consoles, const LogDirectory& logs);

  // After each turn of the loop. `running` may be null.
  void tend(const Generation* running);

 private:
  void warn_about_logs(const Generation& running);
  void warn_about_console();

  Consoles& consoles_;
  const LogDirectory& logs_;
  bool warned_about_logs_ = false, warned_about_console_ = false;
};

}  // namespace paceline::launch
