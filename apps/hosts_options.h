#pragma once

// `paceline run` on several hosts: who they are, how each is reached, and what each is told.

#include <optional>
#include <string>
#include <vector>

#include "paceline/hosts/host_list.h"
#include "paceline/hosts/hosts_plan.h"

#include "apps/run_options.h"

namespace paceline::apps {

// The hosts that the options name, each with its slots; nothing when the job runs on this machine,
// or is started by hand on each. Throws UsageError, Error(kInvalid).
std::optional<std::vector<launch::Host>> chosen_hosts(const RunTexts& texts,
                                                      const CommandLine& line);

// For a job that has no hosts: throws UsageError when options that say how to reach them were
// typed.
void refuse_options_of_hosts(const CommandLine& line);

// The options as if they had been typed on `host`, for checking them and for --print-config.
RunTexts texts_on_host(const RunTexts& texts, const std::vector<launch::Host>& hosts,
                       std::size_t host);

// Everything that is needed to start. `app` has taken the options; `options` are those of host 0,
// checked. Throws UsageError, Error(kInvalid), ProgramError.
launch::HostsPlan plan_hosts(const CLI::App& app, const RunTexts& texts, const CommandLine& line,
                             const launch::LaunchOptions& options,
                             const std::vector<launch::Host>& hosts);

// The help's group of options that are a scheduler's, not of paceline run.
inline constexpr const char* kJobGroup = "Job";

// The options of paceline run, as arguments, that were given in any way and that every host takes
// as they are.
std::vector<std::string> passed_on(const CLI::App& app);

// The address at which the hosts meet: the one given, or one of the first host that others reach.
// Error(kInvalid) when it cannot be told.
std::string meeting_address(const std::vector<launch::Host>& hosts, const RunTexts& texts);

}  // namespace paceline::apps
