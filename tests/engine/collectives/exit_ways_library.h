#pragma once

// Something that a global variable of another library holds until that library ends.

#include <memory>

namespace paceline {

std::shared_ptr<void>& held_by_static_library();
std::shared_ptr<void>& held_by_shared_library();

}  // namespace paceline
