#include "paceline/engine/core/terminal.h"

#include <cstdlib>
#include <string_view>

#include <termios.h>

namespace paceline {

bool can_draw_on(int fd) {
  const char* const kind = std::getenv("TERM");
  const std::string_view name = kind != nullptr ? kind : "";
  return !name.empty() && name != "dumb" && tcgetsid(fd) != -1;  // known of this session's own only
}

}  // namespace paceline
