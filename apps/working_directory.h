#pragma once

namespace paceline::apps {

// Error(kSystem) when this process's working directory was removed: paths cannot be made absolute
// then, and ranks would not find theirs.
void require_working_directory();

}  // namespace paceline::apps
