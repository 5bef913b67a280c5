#pragma once

// The temporary log folders of jobs that failed or were stopped are kept, to be looked at. Some
// time later nobody does.

#include <chrono>
#include <string>
#include <vector>

namespace paceline::launcher {

// "paceline-20261231-235959-x7Fq2a".
bool is_temporary_log_folder(const std::string& name);

// The folder that they are in: TMPDIR, else /tmp.
std::string base_of_log_folders();

// This user's folders in `base` that no running job uses, those of the job that ended last first.
std::vector<std::string> kept_log_folders(const std::string& base = base_of_log_folders());

// Removes from `base` the temporary log folders of this user in which nothing was written for
// `age`, unless a job that runs has them. One in which lies anything that Paceline has not made
// stays whole.
void remove_old_log_folders(const std::string& base,
                            std::chrono::seconds age = std::chrono::hours(7 * 24));

}  // namespace paceline::launcher
