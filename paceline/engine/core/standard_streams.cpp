#include "paceline/engine/core/standard_streams.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

namespace paceline {

// open() gives the lowest number that is free, and all below it are held by then.
void hold_standard_streams() noexcept {
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (fcntl(stream, F_GETFD) < 0 && errno == EBADF) open("/dev/null", O_RDONLY);
  }
}

}  // namespace paceline
