#include "tests/engine/collectives/exit_ways_library.h"

namespace paceline {
namespace {
std::shared_ptr<void> held;
}  // namespace

std::shared_ptr<void>& held_by_static_library() { return held; }

}  // namespace paceline
