#include "paceline/engine/transport/message.h"

#include <cerrno>

namespace paceline {

bool would_block(int error) { return error == EAGAIN; }

}  // namespace paceline
