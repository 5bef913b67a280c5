#pragma once

// What `paceline bench` is asked to do, and what does not go together with it: every option that
// would be ignored is an error or a note, so that it is not believed to count.

#include <string>
#include <vector>

#include "paceline/engine/rendezvous/launch_environment.h"

#include "apps/bench_options.h"

namespace paceline::apps {

BenchMode mode_of(const OptionTable& table);

// Each throws UsageError, which says what to type instead.

// `words` name operations.
void require_meaning(const OptionTable& table, const std::vector<std::string>& words,
                     BenchMode mode);
// Ranks that a launcher started must not all start ranks of their own. `command` is what was typed.
void require_place(const OptionTable& table, BenchMode mode, const LaunchEnvironment& who,
                   const std::string& command);
void require_transport(const BenchOptions& options);
// Operations that the algorithm does not serve, beside one that it does, are added to `notes`.
void require_algorithm(const BenchOptions& options, std::vector<std::string>& notes);

}  // namespace paceline::apps
