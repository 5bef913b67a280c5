#pragma once

// Objects that a global variable of another library holds until that library is unloaded or the
// process exits.

#include <memory>

namespace paceline {

std::shared_ptr<void>& held_by_static_library();
std::shared_ptr<void>& held_by_shared_library();

}  // namespace paceline
