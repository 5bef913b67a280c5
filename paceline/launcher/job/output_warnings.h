#pragma once

// What the user is told, once each, about output that is lost or late: logs that could not be
// written, what the ranks printed that could not be shown, ranks without a terminal.
//
// Thread safety: none.

#include "paceline/launcher/job/generation.h"
#include "paceline/launcher/output/consoles.h"
#include "paceline/launcher/output/log_directory.h"

namespace paceline::launcher {

class OutputWarnings {
 public:
  // The references must outlive it.
  OutputWarnings(Consoles& consoles, const LogDirectory& logs);

  // After each turn of the loop. `running` may be null.
  void tend(const Generation* running);

 private:
  void warn_about_logs(const Generation& running);
  void warn_about_console();
  void warn_about_terminals(const Generation& running);

  Consoles& consoles_;
  const LogDirectory& logs_;
  bool warned_about_logs_ = false, warned_about_console_ = false, warned_about_terminals_ = false;
};

}  // namespace paceline::launcher
