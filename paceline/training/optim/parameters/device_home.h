#pragma once

// Parameters on a CUDA device that are divided among the ranks: each rank stores only the part that
// its steps update, and units are whole only while operations read them (device_parameters.h).
//
// Thread safety: none.

#include <memory>

#include "paceline/training/optim/parameters/parameter_home.h"

namespace paceline::optim {

// Moves this rank's parts of the parameters into memory of their own. Collective; errors as in
// zeros_on_device().
std::unique_ptr<ParameterHome> make_device_home(const ParameterRows& rows,
                                                std::shared_ptr<ProcessGroup> group,
                                                const ShardOptions& options);

}  // namespace paceline::optim
